"""Stepping q(z) on the integrated density, weighting its draws, and putting the result together."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.diagnosis.chained_locals import ChainedLocals, chained
from pyturingvi.diagnosis.integrals import IntegratedDensity
from pyturingvi.diagnosis.weights import importance_weights, resampled
from pyturingvi.engines.numpy_engine import NumpyEngine
from pyturingvi.errors import InputError
from pyturingvi.families import Family, FullRank, Markov, Structured
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.models.structure import locals_are_crossed
from pyturingvi.optimize.memory import check_refine_memory
from pyturingvi.optimize.monitor import Outcome, RunMonitor
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.refine.as_gaussian import as_gaussian
from pyturingvi.refine.integrated_model import IntegratedModel
from pyturingvi.refine.proposals import Gaussian, weighted_covariance
from pyturingvi.refine.refinement import EVEN_SHARE, LEAST_SHARE, Refinement
from pyturingvi.refine.resolution import Resolution, most_nodes
from pyturingvi.refine.start import newton_step
from pyturingvi.refine.tails import LARGEST_BEYOND, MOST_SLOPES
from pyturingvi.refine.weighted_draws import WeightedDraws
from pyturingvi.settings import FitSpec, Settings
from pyturingvi.support.parallel import Workers, available_cores, one_blas_thread
from pyturingvi.support.registry import defines

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_CHECKED = 16  # globals at which integrals are compared with twice the nodes
_LOCALS_AT = 128  # globals over which the locals' moments are taken
_MOST_UPDATES = 1000
_USUAL_UPDATES, _USUAL_DRAWS, _DRAWS_A_GLOBAL = 60, 4000, 300
_SMALL = 50  # variables up to which a global term may be had by way of all log terms, a million times


@dataclass(frozen=True)
class Refined:
    """What `Fit.refine` makes a Fit of: the spec of its family, a run's outcome, and the weighted draws."""

    spec: FitSpec
    outcome: Outcome
    rows: list[tuple[int, float, float, float]]
    seconds: float
    refinement: Refinement
    problems: list[str]


def check_refinable(model: Model, family: Family, n_nodes: int | None = None, n_draws: int = 2000) -> None:
    """Refuse, with the reason, to refine a fit whose locals cannot be integrated out, or not in memory.

    Raises
    ------
    InputError, MemoryLimitError
    """
    layout, chain = model.layout, chained(model, family)
    if not model.has_log_terms and not chain:
        raise InputError(f"refine cannot help {model.description}: {model.no_log_terms}.")
    if not model.has_term_gradients and not chain:
        raise InputError(
            f"refine needs the gradients of log terms, and {model.description} gives none: define "
            "`_log_terms_and_gradient`."
        )
    if not layout.n_global or not layout.n_local:
        raise InputError(
            f"refine integrates the locals out to correct the globals; {model.label} has no "
            f"{'globals' if not layout.n_global else 'locals'}."
        )
    check_refine_memory(layout, most_nodes(layout.local_dim, n_nodes, chain=chain), n_draws)
    if chain and model.default_family != Markov.name and locals_are_crossed(layout, model.gradient, "refine"):
        raise InputError(
            f"refine cannot help {model.description}: {model.no_log_terms}, and given the globals its locals depend on "
            "others than their neighbours, so that they are no chain either."
        )


def expected_seconds(fit: Fit) -> float:
    """About how long refining a fit will take, from the slopes at a few globals."""
    model, n_rows = fit.model, 2 * available_cores()
    parts = GlobalsAndLocals.of(fit.family.bind(model.layout), fit.params)
    with one_blas_thread(), Workers(available_cores()) as workers, np.errstate(all="ignore"):
        map_ = workers.map if model.thread_safe else map
        integrals = Resolution(model, parts, 0, map_, chain=chained(model, fit.family)).at(None)
        z = Gaussian(parts.mean, parts.scale).draw(
            n_rows * max(1, integrals.rows // 4), generator(np, 0, SAMPLE_STREAM, 7)
        )
        start = time.perf_counter()
        integrals.log_density_and_gradient(z)
        each = (time.perf_counter() - start) / len(z)
    n_samples = _settings(len(parts.mean), 0).n_samples
    assert isinstance(n_samples, int)
    return each * (_USUAL_UPDATES * n_samples + _USUAL_DRAWS + _DRAWS_A_GLOBAL * len(parts.mean))


def refine(fit: Fit, n_nodes: int | None, n_draws: int, seed: int, progress: bool, checkpoint: Path | None) -> Refined:
    """See `Fit.refine`; the arguments are checked."""
    model = fit.model
    check_refinable(model, fit.family, n_nodes, n_draws)
    if fit.status == "diverged":
        raise InputError(f"refine: this fit diverged ({fit.message}); there is nothing to go on from.")
    parts = GlobalsAndLocals.of(fit.family.bind(model.layout), fit.params)
    chain = chained(model, fit.family)
    spec = replace(
        fit.spec,
        family=(Markov() if chain else Structured()).config(),
        refine={"n_nodes": n_nodes, "n_draws": n_draws, "seed": seed, "of": fit.spec.family},
    )
    with one_blas_thread(), Workers(available_cores()) as workers, np.errstate(all="ignore"):
        stepping = _Stepping(model, parts, spec, seed, workers, chain=chain)
        if fit.family.independent:
            stepping.begin()
        return stepping.run(n_nodes, n_draws, progress, checkpoint)


class _Stepping:
    """One refinement: q(z) = N(mean, scale scale'), and nodes that follow the fit's conditionals."""

    def __init__(
        self, model: Model, parts: GlobalsAndLocals, spec: FitSpec, seed: int, workers: Workers, *, chain: bool
    ) -> None:
        self.model, self.parts, self.spec, self.seed, self.chain = model, parts, spec, seed, chain
        self.nodes = Resolution(model, parts, seed, workers.map if model.thread_safe else map, chain=chain)
        self.mean, self.scale = parts.mean, parts.scale
        self.settings = _settings(len(parts.mean), seed)
        self.problems: list[str] = []

    def begin(self) -> None:
        """Bring q(z) nearer, where it has no correlations."""
        found = newton_step(Gaussian(self.mean, self.scale), self.nodes.at(None).log_density_and_gradient)
        if found is not None:
            self.mean, self.scale = found.mean, found.root

    def run(self, n_nodes: int | None, n_draws: int, progress: bool, checkpoint: Path | None) -> Refined:
        """Choose the nodes, step, check the nodes again where q(z) now is, weight."""
        integrals = self.nodes.at(n_nodes)
        if n_nodes is None:
            integrals = self._enough(integrals)
        monitor = RunMonitor(
            {**self.spec.to_json(), "n_iterations": None, "elbo_every": None}, progress, None, checkpoint
        )
        outcome = self._step(integrals, monitor)
        if n_nodes is None and outcome.status == "converged":
            better = self._enough(integrals)
            if better.size > integrals.size:
                integrals, earlier = better, outcome.n_updates
                again = RunMonitor(monitor.description, progress)
                outcome = self._step(integrals, again)
                outcome.n_updates += earlier
                monitor.rows += [(row[0] + earlier, *row[1:]) for row in again.rows]
        if isinstance(integrals, ChainedLocals):  # the fit may have been far away
            self.nodes.parts = self.parts = integrals.moved(self.mean, self.scale)
            integrals = self.nodes.at(integrals.size)
        with self.nodes.bar(f"{self.model.label} weights", progress):
            refinement = self._weigh(integrals, n_draws, outcome.n_updates)
        outcome.params = self._flat(integrals, refinement)
        rows = [*monitor.rows[:-1], (outcome.n_updates, refinement.bound, refinement.bound_error, monitor.seconds)]
        self._tell(outcome, refinement)
        return Refined(self.spec, outcome, rows, monitor.seconds, refinement, self.problems)

    # ---- steps --------------------------------------------------------------------------------------------
    def _step(self, integrals: IntegratedDensity, monitor: RunMonitor) -> Outcome:
        """Natural gradients on q(z) until converged."""
        model = IntegratedModel(self.model, integrals)
        d_z = len(self.mean)
        initial = np.concatenate([self.mean, *(self.scale[j:, j] for j in range(d_z))])
        outcome = NumpyEngine(1).run(model, self.settings, initial, None, monitor)
        bound = self.settings.family.bind(model.layout)
        self.mean, self.scale = bound.location(outcome.params), bound.scale(outcome.params).toarray()
        return outcome

    def _enough(self, integrals: IntegratedDensity) -> IntegratedDensity:
        found, problems = self.nodes.enough(integrals, self._draw(_CHECKED, 7))
        self.problems += problems
        return found

    # ---- weights ------------------------------------------------------------------------------------------
    def _draw(self, n: int, place: int) -> np.ndarray:
        return Gaussian(self.mean, self.scale).draw(n, generator(np, self.seed, SAMPLE_STREAM, place))

    def _weigh(self, integrals: IntegratedDensity, n_draws: int, n_steps: int) -> Refinement:
        """Weighted draws of q(z), and of what is nearer to the posterior where that can be had."""
        model = self.model
        cheap = defines(model, "_global_term") or (model.has_log_terms and model.dim <= _SMALL)
        prior = model._global_term if cheap else None
        draws = WeightedDraws(
            integrals.log_density,
            prior,
            self.seed,
            integrals.log_density_and_gradient,
            int(integrals.cheap * MOST_SLOPES),
        )
        q = Gaussian(self.mean, self.scale)
        draws.draw_from(q, n_draws)
        found = importance_weights(draws.log_ratios)
        even = found.ess >= EVEN_SHARE * len(draws.z)  # a bounded hump at the edge may look like a tail
        weighted = (found.reliable or even) and found.ess >= LEAST_SHARE * n_draws
        z = draws.z
        weights = found.weights if weighted else draws.own_weights
        few = z[np.argsort(-weights, kind="stable")[:: max(1, len(z) // _CHECKED)][:_CHECKED]]
        finer = self.nodes.at(2 * integrals.size)
        more = float((finer.log_density(few) - integrals.log_density(few)).mean())
        doubt = finer.doubt(z[resampled(weights, _CHECKED, generator(np, self.seed, SAMPLE_STREAM, 10))])
        evidence, error = draws.log_total()
        bound, bound_error = draws.bound()
        return Refinement(
            draws=z,
            weights=weights,
            weighted=weighted,
            k_hat=found.k_hat,
            ess=found.ess,
            bound=bound + more,
            bound_error=bound_error,
            log_evidence=evidence + more,
            log_evidence_error=error,
            integration_error=abs(more),
            doubt=doubt,
            n_nodes=integrals.size,
            n_steps=n_steps,
            tails=[model.global_labels[ridge.k] for ridge in draws.ridges],
            endless=[model.global_labels[ridge.k] for ridge in draws.ridges if ridge.beyond > LARGEST_BEYOND],
            coarse=self.nodes.coarse(integrals, finer, q, float(np.nanmax(draws.logs))),
        )

    # ---- the result as a Gaussian -------------------------------------------------------------------------
    def _flat(self, integrals: IntegratedDensity, found: Refinement) -> np.ndarray:
        """The Gaussian with the weighted draws' moments, flat."""
        mean, scale = self.mean, self.scale
        if found.weighted:
            mean = found.weights @ found.draws
            scale = np.linalg.cholesky(weighted_covariance(found.draws, found.weights, mean))
        z = found.resample(_LOCALS_AT, generator(np, self.seed, SAMPLE_STREAM, 9))
        return as_gaussian(integrals, self.parts, mean, scale, z, chained=self.chain)

    # ---- what is told -------------------------------------------------------------------------------------
    def _tell(self, outcome: Outcome, found: Refinement) -> None:
        outcome.message = f"refined {outcome.message}; {found.words}"
        if outcome.status != "converged":
            self.problems.append(f"Refining ended before it had converged: {outcome.message}.")
        if not found.weighted:
            self.problems.append(
                f"refine cannot prove its answer here: the weights of the globals have k-hat {found.k_hat:.2f} and an "
                f"effective sample size of {found.ess:,.0f} of {len(found.draws):,}. They are not used; the globals "
                "are the Gaussian stepped on the density with the locals integrated out."
            )
        if found.endless:
            self.problems.append(found.endless_words)
        if found.coarse:
            self.problems.append(found.coarse_words)
        if found.doubt_words:
            self.problems.append(found.doubt_words)
        vague = found.vague_words(list(self.model.global_labels))
        if vague:
            self.problems.append(vague)


def _settings(d_z: int, seed: int) -> Settings:
    """Full-rank natural gradients: draws are dear here, so as few as frames of them need."""
    return Settings(
        family=FullRank(),
        optimizer=NaturalGradient(),
        n_iterations=_MOST_UPDATES,
        n_samples=2 * max(8, 2 * d_z),
        elbo_samples=2,
        seed=seed,
        engine="numpy",
    )
