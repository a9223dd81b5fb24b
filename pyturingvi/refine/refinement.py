"""What refining found: weighted draws of the globals, and the integrated bound with its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from pyturingvi.diagnosis.weights import ImportanceWeights, resampled

_ARRAYS = ("draws", "weights")
LARGEST_SD_ERROR = 0.15  # standard error of a standard deviation, as a share of it, above which that is told
LARGEST_DOUBT = 0.5  # nats, where it is told: ten times what is usual
EVEN_SHARE = 0.9  # from which weights are used whatever their tail looks like
LEAST_SHARE = 0.1  # effective sample size over draws below which the weights are not used


@dataclass(frozen=True)
class Refinement:
    """The globals with the locals integrated out, as draws of q(z) with Pareto-smoothed importance weights.

    Attributes
    ----------
    draws : (S, d_z) array
        Of q(z), unconstrained.
    weights : (S,) array
        They sum to 1; all equal where `weighted` is False.
    weighted : bool
        Whether the weights can be relied on, so that `Fit.sample` and `Fit.summary` use them. The globals are then
        those of the posterior but for noise; else they are those of q(z).
    k_hat, ess : float
        Shape of the weights' tail, good below 0.7, and their effective sample size of S draws.
    bound, bound_error : float
        Mean of `log p(z, x) - log q(z)` in nats, with its standard error: at most the log marginal likelihood.
    log_evidence, log_evidence_error : float
        Estimate of the log marginal likelihood from the weights, with its standard error.
    integration_error : float
        Nats by which the integrals with twice the nodes differ, all locals together; the estimates have it added.
    n_nodes : int
        Nodes along each variable of a local, or draws of it, or pairs of draws of a chain of them.
    n_steps : int
        Natural-gradient updates made on q(z).
    tails : list of str
        Globals with a tail that draws of q(z) do not reach, as of the logarithm of a scale that may be 0: draws were
        made along it too.
    endless : list of str
        Those of them whose density falls so slowly that a good part of it may lie farther out than was looked.
    coarse : list of str
        Globals far out along which the integrals over the locals still change with the number of nodes.
    doubt : float
        Nats: spread over the globals of what the integrals of a chain leave out, whatever the number of its draws.
    """

    draws: np.ndarray
    weights: np.ndarray
    weighted: bool
    k_hat: float
    ess: float
    bound: float
    bound_error: float
    log_evidence: float
    log_evidence_error: float
    integration_error: float
    n_nodes: int
    n_steps: int
    tails: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    coarse: list[str] = field(default_factory=list)
    doubt: float = 0.0

    def __repr__(self) -> str:
        return f"<Refinement: {self.words}>"

    @property
    def words(self) -> str:
        """The figures in a line."""
        figures = (
            f"k-hat {self.k_hat:.2f}, effective sample size {self.ess:,.0f} of {len(self.draws):,}, log evidence "
            f"{self.log_evidence:.2f} (standard error {self.log_evidence_error:.2g})"
        )
        return figures if self.weighted else f"{figures}; the weights are not used"

    @property
    def endless_words(self) -> str:
        """What is told of `endless`."""
        listed = ", ".join(self.endless)
        return (
            f"The density falls so slowly along {listed} that a good part of it may lie farther out than was looked: "
            "the posterior may have no mean there. A prior that falls faster mends that."
        )

    @property
    def coarse_words(self) -> str:
        """What is told of `coarse`."""
        return (
            f"Far out along {', '.join(self.coarse)} the integrals over the locals still change with their number of "
            f"nodes, which is {self.n_nodes}, so that the standard deviations may be off. A larger n_nodes may do; "
            "tv.sample_nuts is the reference."
        )

    @property
    def doubt_words(self) -> str:
        """What is told of `doubt`; empty where it is small."""
        if self.doubt <= LARGEST_DOUBT:
            return ""
        return (
            "The locals are far from normal given the globals: integrals over them may be off by "
            f"{self.doubt:.2g} nats from one value of the globals to another. tv.sample_nuts is the reference."
        )

    def vague_words(self, labels: list[str]) -> str:
        """Which standard deviations rest on a few draws far out; empty where none does."""
        errors = self.importance.sd_errors(self.draws)
        vague = [k for k in np.argsort(-errors, kind="stable") if not errors[k] <= LARGEST_SD_ERROR]
        if not self.weighted or not vague:
            return ""
        listed = ", ".join(f"{labels[k]} ({errors[k]:.0%})" for k in vague[:5])
        return (
            f"Standard deviations that rest on a few draws far out, with their standard errors: {listed}. A larger "
            "n_draws tells more."
        )

    @property
    def importance(self) -> ImportanceWeights:
        """The weights as a diagnosis takes them."""
        return ImportanceWeights(self.weights, self.k_hat, self.ess, 0.0)

    def resample(self, n: int, source: np.random.Generator) -> np.ndarray:
        """Draws (n, d_z), each as often as its weight says, in random order."""
        return np.asarray(self.draws[resampled(self.weights, n, source)])

    # ---- file ---------------------------------------------------------------------------------------------
    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Plain values for a header, and arrays."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _ARRAYS}
        return plain, {f"refined.{name}": getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_state(cls, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Refinement:
        """Inverse of `to_state`; a KeyError, TypeError or ValueError where it was something else."""
        values: dict[str, Any] = {**plain, **{name: arrays[f"refined.{name}"] for name in _ARRAYS}}
        found = cls(**values)
        if found.weights.shape != found.draws.shape[:1]:
            raise ValueError("its weights are not those of its draws")
        return found
