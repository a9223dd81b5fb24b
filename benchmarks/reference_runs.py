"""What `references.py` runs on a problem: chains of NUTS, our fits, NumPyro's AutoNormal."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam
from reference_problems import Reference

import pyturingvi as tv
from pyturingvi.referee.mici import diagnose

WARMUP, DRAWS, TARGET = 1000, 2000, 0.95
LEAST_CHAINS, MOST_CHAINS = 4, 16
LARGEST_R_HAT, LEAST_ESS = 1.01, 4000
STEPSIZES = (1e-3, 1e-2, 1e-1)  # of AutoNormal
PARTICLES, JUDGED = 8, 200  # draws a gradient, and the last updates over which ELBOs are compared
FIT_DRAWS = 20_000


def scalars(draws: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
    """Each scalar of the globals, (draws,); logarithms of what is named so."""
    found = {}
    for name in names:
        values = np.asarray(draws[name.removeprefix("log ")])
        values = values.reshape(len(values), -1)
        for k, column in enumerate((np.log(values) if name.startswith("log ") else values).T):
            found[name if values.shape[1] == 1 else f"{name}[{k}]"] = column
    return found


# ---- NUTS -----------------------------------------------------------------------------------------------------
def chains(problem: Reference, warmup: int, draws: int) -> tuple[str, Iterator[dict[str, np.ndarray]]]:
    """The sampler with its version, and the globals of one chain after the other, each from a seed of its own."""
    if problem.sampled is None:
        locals_out = "" if problem.sampled_model is None else ", locals integrated out"
        return f"mici {version('mici')}{locals_out}", _of_mici(problem, warmup, draws)
    return f"NumPyro {version('numpyro')}", _of_numpyro(problem, warmup, draws)


def _of_numpyro(problem: Reference, warmup: int, draws: int) -> Iterator[dict[str, np.ndarray]]:
    kernel = NUTS(problem.sampled, target_accept_prob=TARGET)
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
    for seed in range(MOST_CHAINS):
        mcmc.run(jax.random.PRNGKey(seed))
        yield scalars(mcmc.get_samples(), problem.globals_)


def _of_mici(problem: Reference, warmup: int, draws: int) -> Iterator[dict[str, np.ndarray]]:
    model = problem.sampled_model or problem.model
    for seed in range(MOST_CHAINS):
        with warnings.catch_warnings(action="ignore", category=tv.ConvergenceWarning):  # a chain alone: R-hat is ours
            found = tv.sample_nuts(model, draws, warmup, 1, seed, progress=False, sampler="mici")
        yield scalars(found.sample(), problem.globals_)


def run_nuts(
    problem: Reference, seconds: float, warmup: int = WARMUP, draws: int = DRAWS
) -> Iterator[list[dict[str, Any]]]:
    """Rows of means, standard deviations, R-hat and effective sample sizes, anew after each chain.

    It ends when R-hat (rank-normalized: Vehtari et al. 2021) and effective sample sizes are good, or when another chain
    would take more than `seconds` in all.
    """
    start, kept = time.perf_counter(), []
    sampler, found = chains(problem, warmup, draws)
    for chain in found:
        kept.append(chain)
        spent, rows = time.perf_counter() - start, []
        values = np.stack([np.stack(list(one.values()), axis=1) for one in kept])  # (chains, draws, globals)
        common = {"chains": len(kept), "draws": len(kept) * draws, "seconds": round(spent, 1), "sampler": sampler}
        for k, (name, figures) in enumerate(zip(chain, diagnose(values).T, strict=True)):
            mean, sd = values[..., k].mean(), values[..., k].std(ddof=1)
            told = dict(zip(("r_hat", "ess_bulk", "ess_tail"), figures.tolist(), strict=True))
            rows.append({"global": name, "mean": mean, "sd": sd, **told, **common})
        yield rows
        good = max(row["r_hat"] for row in rows) < LARGEST_R_HAT and min(row["ess_bulk"] for row in rows) > LEAST_ESS
        if (good and len(kept) >= LEAST_CHAINS) or spent * (len(kept) + 1) / len(kept) > seconds:
            return


# ---- fits -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """What a method says of the globals: draws of each, seconds (clock, processor), its verdict, what it told."""

    draws: dict[str, np.ndarray]
    seconds: np.ndarray
    verdict: str = ""
    told: str = ""


FAMILIES: dict[str, Callable[[], Any]] = {"mean-field": tv.MeanField, "structured": tv.Structured}
if "conditional_scale" in inspect.signature(tv.Structured).parameters:
    FAMILIES["conditional"] = lambda: tv.Structured(conditional_scale=True)


def clock() -> np.ndarray:
    """Seconds of the clock and of this process's processor time."""
    return np.array([time.perf_counter(), time.process_time()])


@cache
def fitted(problem: Reference, method: str, engine: str = "numpy") -> tuple[tv.Fit, np.ndarray]:
    """A fit, and its seconds by the clock and of the processor; what is to be refined is fitted once.

    Of time series, "structured" is the Markov family.
    """
    start = clock()
    chain = method == "structured" and problem.model.default_family == "markov"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what fits tell is in the table
        fit = tv.fit(problem.model, tv.Markov() if chain else FAMILIES[method](), progress=False, engine=engine)
    return fit, clock() - start


def refined(fit: tv.Fit) -> tuple[tv.Fit, np.ndarray]:
    """The same, refined, and the seconds that took."""
    start = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit.refine(progress=False)
    return found, clock() - start


def run_family(problem: Reference, method: str) -> Found:
    """Our fit with one family, or refined from a structured one."""
    fit, seconds = fitted(problem, "structured" if method == "refined" else method)
    if method == "refined":
        try:
            fit, more = refined(fit)
        except tv.errors.InputError as error:
            return Found({}, seconds, "refused", str(error))
        seconds = seconds + more
    told = "; ".join([f"{fit.status}: {fit.message}" if fit.status != "converged" else "", *fit.warnings, *fit.advice])
    verdict = fit.diagnose().verdict
    draws = scalars(fit.sample(FIT_DRAWS, local=False), problem.globals_)
    return Found(draws, seconds, verdict, told.strip("; "))


def run_autonormal(problem: Reference) -> Found:
    """NumPyro's AutoNormal with Adam, the stepsize with the highest ELBO at the end; the seconds are of that one."""
    best: tuple[float, float, np.ndarray, dict[str, np.ndarray]] = (-np.inf, 0.0, np.zeros(2), {})
    for stepsize in STEPSIZES:
        guide = AutoNormal(problem.peer, init_scale=0.1)
        loss = Trace_ELBO(num_particles=PARTICLES, vectorize_particles=True)
        start = clock()
        found = SVI(problem.peer, guide, Adam(stepsize), loss).run(
            jax.random.PRNGKey(0), problem.peer_steps, progress_bar=False
        )
        elbo = -float(np.mean(found.losses[-JUDGED:]))
        if np.isfinite(elbo) and elbo > best[0]:
            draws = guide.sample_posterior(jax.random.PRNGKey(1), found.params, sample_shape=(4000,))
            best = (elbo, stepsize, clock() - start, scalars(draws, problem.globals_))
    told = f"Adam({best[1]:g}), {problem.peer_steps:,} updates, ELBO {best[0]:.1f}"
    return Found(best[3], best[2], "", told)


METHODS: dict[str, Callable[[Reference, str], Found]] = {
    **dict.fromkeys([*FAMILIES, "refined"], run_family),
    "AutoNormal": lambda problem, _: run_autonormal(problem),
}
