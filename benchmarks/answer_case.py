"""The default fit of one problem, in a process of its own; the result as JSON. Used by `time_to_answer.py`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from typing import Any

import numpy as np
from answer_problems import DRAWS, FITS, build, elbo_of, size_of
from machine import wait_until_quiet

from pyturingvi.comparisons.timing import busy_others, update_times


def warm_up(engine: str) -> None:
    """A fit of another model: starting Julia and importing what a fit needs are not part of an answer."""
    import pyturingvi as tv

    rng = np.random.default_rng(0)
    model = tv.models.RobustPoisson(rng.normal(size=(20, 1)), rng.poisson(2.0, size=20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tv.fit(model, engine=engine, progress=False)


def timed_fit(
    problem: str, engine: str, quiet: float = 0.0, *, family: str = "structured", **options: Any
) -> tuple[Any, dict[str, Any]]:
    """A fit of a fresh model object, all else by default, and its figures; `options` are those beyond it.

    The family "own" is the model's: that of `tv.fit(model)`.
    """
    import pyturingvi as tv

    model = build(problem)
    wait_until_quiet(quiet)
    others, load = busy_others(), os.getloadavg()[0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        start, used = time.perf_counter(), time.process_time()
        fit = tv.fit(model, None if family == "own" else family, engine=engine, progress=False, **options)
        times = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - used}
    figures = {**times, "status": fit.status, "n_updates": fit.n_updates}
    figures |= {"warned": " ".join(sorted({w.category.__name__ for w in said}))}
    return fit, {**figures, "other_cores": others(), "load": load}


def adam_ms(problem: str, engine: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a structured Adam update, the fastest tenth of a second; those that pass, and the processor's."""
    import pyturingvi as tv

    model = build(problem)

    def run(n: int, **options: Any) -> Any:
        shared = {"elbo_samples": 1, "engine": engine, "progress": False}
        return tv.fit(model, "structured", tv.Adam(1e-4), n_iterations=n, **shared, **options)

    clocks = {"adam_ms": time.perf_counter, "adam_cpu_ms": time.process_time}
    return {name: min(update_times(run, seconds / 2, clock=clock)) for name, clock in clocks.items()}


def with_elbo(problem: str, fit: Any, figures: dict[str, Any], share: int = 1) -> dict[str, Any]:
    draws = DRAWS[size_of(problem)] // share
    elbo, error = elbo_of(fit, draws)
    return {**figures, "elbo": elbo, "std_error": error, "draws": draws}


def answer(problem: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    """The default fit, timed, beside the time of an Adam update before and after it."""
    before = adam_ms(problem, a.engine, a.seconds)
    runs = [
        timed_fit(problem, a.engine, a.quiet, family=a.family) for _ in range(a.fits or FITS.get(size_of(problem), 1))
    ]
    after = adam_ms(problem, a.engine, a.seconds)
    fit, figures = runs[0]  # the same seed, so the same fit each time
    for key in ("seconds", "cpu_s", "other_cores", "load"):
        figures[key] = statistics.median(f[key] for _, f in runs)
    slowest = max(f["seconds"] for _, f in runs)
    units = {name: min(before[name], after[name]) for name in before}
    return [{**units, **with_elbo(problem, fit, {**figures, "slowest": slowest, "fits": len(runs)})}]


def seeds(problem: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    """The default fit from each seed."""
    fits = (timed_fit(problem, a.engine, seed=seed) for seed in range(a.seeds))
    return [{"seed": seed, **with_elbo(problem, *fit, share=4)} for seed, fit in enumerate(fits)]


def reference(problem: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    """The paper's protocol: Adam at each stepsize; for mean-field the default optimizer as well."""
    import pyturingvi as tv

    shared = {"n_iterations": a.iterations, "elbo_samples": 1}
    ways: dict[str, Any] = {f"Adam({s:g})": {"optimizer": tv.Adam(s), **shared} for s in a.stepsizes}
    if a.family == "mean-field":
        ways["default"] = {}
    rows = []
    for method, options in ways.items():
        fit, figures = timed_fit(problem, a.engine, family=a.family, **options)
        rows.append({"method": method, **with_elbo(problem, fit, figures)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["answer", "seeds", "adam"])
    parser.add_argument("problem")
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quiet", type=float, default=0.0)
    parser.add_argument("--fits", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--stepsizes", type=float, nargs="*", default=[])
    parser.add_argument("--iterations", type=int, default=50_000)
    parser.add_argument("--family", default="structured")
    a = parser.parse_args()
    warm_up(a.engine)
    part = {"answer": answer, "seeds": seeds, "adam": reference}[a.part]
    print(json.dumps(part(a.problem, a)))


if __name__ == "__main__":
    main()
