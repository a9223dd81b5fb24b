"""What a traced model says of data: those observed, their likelihood, data anew, and draws of its prior."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, PyTuringVIError, in_short
from pyturingvi.models.foreign import axis_names
from pyturingvi.models.jax_batches import SEEDS, at_one_point, traced
from pyturingvi.models.observed import REBUILD, Observation
from pyturingvi.models.traced import ObservedSite, Sites
from pyturingvi.models.traced_terms import TracedTerms
from pyturingvi.support.extras import require


class TracedModel(TracedTerms):
    """A model of another library with all that it tells: density, terms, data.

    A subclass calls `_start` with its sites, and then `_settle`; where it draws data anew by a JAX function, that is
    `_replicated` and `_prior`, otherwise it overrides `_replicate` and `_draw_prior`.
    """

    remedy_of_missing: ClassVar[str] = "Leave these out of the data."

    # ---- what is told ---------------------------------------------------------------------------------------
    @property
    def tells_data(self) -> bool:
        if self._sites is None:
            self.no_data = f"it was read from a file, which does not hold the model itself: {REBUILD}"
            return False
        self.no_data = "none of its variables is observed"
        return bool(self._observed_values)

    @property
    def tells_replicates(self) -> bool:
        return self.tells_data and self._can_replicate

    @property
    def tells_prior(self) -> bool:
        return self._sites is not None and self._can_draw_prior

    @cached_property
    def _can_replicate(self) -> bool:
        return self._try("no_replicates", self._replicated, self.dim + 1)

    @cached_property
    def _can_draw_prior(self) -> bool:
        return self._try("no_prior", self._prior, 1)

    def _try(self, why: str, function: Callable[[Any], Any], length: int) -> bool:
        """Trace a function; where that fails, remember why."""
        jax = require("jax", self.extra, f"tv.models.{self.door}")
        shape = jax.ShapeDtypeStruct((length,), np.float64)
        try:
            traced(lambda: jax.eval_shape(lambda point: function(point), shape))
        except Exception as error:  # a library's own, for a distribution that it cannot draw from
            words = str(error).rstrip(".") if isinstance(error, PyTuringVIError) else in_short(error)
            setattr(self, why, f"{self.door} cannot draw it ({words})")
            return False
        return True

    # ---- data -----------------------------------------------------------------------------------------------
    def _refuse_missing(self, sites: Sites) -> None:
        """Raise InputError for observed values that are NaN, unless their likelihood is a number all the same."""
        dim = sum(one.size for one in sites.latents)
        found = at_one_point(sites.data, dim) if sites.observed else {}
        for name, (values, counts) in found.items():
            missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
            missing = missing.any(axis=tuple(range(counts.ndim, values.ndim))) & counts  # a value may be a vector
            if not missing.any():
                continue
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Out-of-support")  # NumPyro's, of NaN too
                logs = at_one_point(sites.log_likelihood, dim)[name]
            if not np.isfinite(logs[missing]).all():
                place = tuple(int(k) for k in np.argwhere(missing)[0])
                raise InputError(
                    f"{self.door}: {name!r} is observed, but {int(missing.sum())} of its {missing.size} values are NaN "
                    f"(missing), the first in {'row ' if len(place) == 1 else ''}{', '.join(map(str, place)) or '0'} "
                    f"(counted from 0). {self.remedy_of_missing}"
                )

    def _functions(self, sites: Sites) -> dict[str, Callable[[Any], Any]]:
        return {
            **super()._functions(sites),
            "likelihood": sites.log_likelihood,
            "replicated": self._replicated,
            "prior": self._prior,
        }

    def _observed_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        assert self._sites is not None
        return {one.name: (self._axes_of(one), one.shape) for one in self._sites.observed}

    def _axes_of(self, site: ObservedSite) -> tuple[str, ...]:
        return axis_names(site.name, site.axes, len(site.shape))

    @cached_property
    def _observed_values(self) -> dict[str, tuple[ObservedSite, np.ndarray, np.ndarray]]:
        """Each observed site with its values, and which of them count."""
        assert self._sites is not None
        if not self._sites.observed:
            return {}
        found = at_one_point(self._sites.data, self.dim)
        named = {site.name: (site, *found[site.name]) for site in self._sites.observed}
        return {name: one for name, one in named.items() if one[2].any()}

    def _observations(self) -> dict[str, Observation]:
        return {name: self._observation(*one) for name, one in self._observed_values.items()}

    def _observation(self, site: ObservedSite, values: np.ndarray, counts: np.ndarray) -> Observation:
        axes = list(self._axes_of(site))
        labels = {axis: self._coords[axis].typed for axis in axes}
        if counts.all():
            return Observation(values, axes, {axis: (axis, labels[axis]) for axis in axes})
        cell = f"{site.name}_cell"  # a table with gaps is a list of its cells
        beside = {
            f"{site.name}_{axis}": (cell, _picked(labels[axis], places))
            for axis, places in zip(axes, np.nonzero(counts), strict=False)
        }
        behind = axes[site.n_batch :]
        return Observation(
            values[counts], [cell, *behind], {**beside, **{axis: (axis, labels[axis]) for axis in behind}}
        )

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        return self._cells(self._function("likelihood")(self._in_their_order(points)))

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        seeds = rng.integers(SEEDS, size=(len(points), 1))
        return self._cells(self._function("replicated")(np.hstack([self._in_their_order(points), seeds])))

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = self._function("prior")(rng.integers(SEEDS, size=(n, 1)).astype(np.float64))
        return {name: found[name] for name in self.global_names}

    def _cells(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Without what is masked."""
        return {
            name: found[name] if counts.all() else found[name][:, counts]
            for name, (_, _, counts) in self._observed_values.items()
        }

    # ---- what a subclass defines ----------------------------------------------------------------------------
    def _replicated(self, point_and_seed: Any) -> dict[str, Any]:
        """Observed variables drawn anew, as a JAX function of a point (d,) and a seed behind it."""
        raise NotImplementedError

    def _prior(self, seed: Any) -> dict[str, Any]:
        """Latent and deterministic variables drawn from the prior, as a JAX function of a seed (1,)."""
        raise NotImplementedError


def _picked(labels: Sequence[Any], places: np.ndarray) -> list[Any]:
    return [labels[place] for place in places]
