"""The log density of a traced model as a global term and one a local block, found from the terms of its sites."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pyturingvi.models.observed import REBUILD
from pyturingvi.models.term_blocks import blocks_of_terms
from pyturingvi.models.traced import Sites, Traced
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.extras import require


class TracedTerms(Traced):
    """A traced model that splits where its locals are independent given the globals."""

    unsplit: ClassVar[str] = "the log densities of its sites do not split into terms of one local block each"

    def _functions(self, sites: Sites) -> dict[str, Callable[[Any], Any]]:
        return {
            **super()._functions(sites),
            "terms": sites.terms,
            "sums": self._sums_of_terms,
            "weighted": self._weighted_terms,
        }

    @property
    def has_log_terms(self) -> bool:
        return self._term_blocks is not None

    @property
    def has_term_gradients(self) -> bool:
        return self.has_log_terms

    @cached_property
    def _term_blocks(self) -> np.ndarray | None:
        """The block of each term of the sites' log densities; None where they do not split, or are not all."""
        if self._sites is None:
            self.no_log_terms = f"it was read from a file, which does not hold the model itself: {REBUILD}"
            return None
        if not self.layout.n_local or self.default_family == "markov":
            self.no_log_terms = "it has no locals that are independent given the globals"
            return None
        self.no_log_terms = self.unsplit
        try:
            found = blocks_of_terms(lambda points: self._function("terms")(self._in_their_order(points)), self.layout)
            probe = np.random.default_rng(1).normal(0.0, 0.3, (2, self.dim))
            whole = self._function("terms")(probe).sum(axis=1)
            return found if np.allclose(whole, self._evaluate(probe)[0], rtol=1e-9, atol=1e-9) else None
        except Exception:  # a site may be of a kind whose terms cannot be had; the fit does not need them
            return None

    def _sums_of_terms(self, point: Any) -> tuple[Any, Any]:
        assert self._sites is not None
        assert self._term_blocks is not None
        ops = require("jax.ops", self.extra, f"tv.models.{self.door}")
        sums = ops.segment_sum(self._sites.terms(point), self._term_blocks + 1, self.layout.n_local + 1)
        return sums[0], sums[1:]

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        at_top, each = self._function("sums")(self._in_their_order(points))
        return at_top, each

    def _weighted_terms(self, point_and_weights: Any) -> tuple[Any, Any, Any]:
        """Global term, local terms, and the gradient of the former plus the weighted sum of the latter."""
        point, weights = point_and_weights[: self.dim], point_and_weights[self.dim :]

        def total(point: Any) -> tuple[Any, tuple[Any, Any]]:
            at_top, each = self._sums_of_terms(point)
            return at_top + weights @ each, (at_top, each)

        grad = require("jax", self.extra, f"tv.models.{self.door}").grad
        slope, (at_top, each) = grad(total, has_aux=True)(point)
        return at_top, each, slope

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        both = np.concatenate([self._in_their_order(points), weights], axis=1)
        at_top, each, slope = self._function("weighted")(both)
        return at_top, each, slope[:, self._order].astype(points.dtype, copy=False)
