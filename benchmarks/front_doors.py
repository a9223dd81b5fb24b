"""Radon written in NumPy, JAX and NumPyro: milliseconds of a gradient and of an update, seconds of a fit and of NUTS.

    pip install -e ".[data,jax,numpyro]"
    python benchmarks/front_doors.py              # some two minutes

Gradients and updates are timed in turn, and the fastest of `--rounds` counts. The first fit of a model compiles,
the second does not. NUTS is NumPyro's: one chain of 1,000 draws after as many to adapt, its compilation included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import radon
from machine import markdown

import pyturingvi as tv

HELP = argparse.RawDescriptionHelpFormatter


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of a call, and what it gave."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def fastest(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of the fastest of `rounds` calls, taken in turn after one that does not count."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, np.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], 1e3 * seconds(call)[0])
    return best


def update_ms(model: Any, n: int) -> float:
    """Milliseconds of an update of M = 8 by Adam: the fastest 20 in a row of n, an ELBO from one draw included."""
    ticks: list[float] = []
    settings: dict[str, Any] = {"n_iterations": n, "elbo_every": 20, "elbo_samples": 1, "progress": False}
    tv.fit(
        model, "structured", tv.Adam(1e-3), engine="numpy",
        callback=lambda iteration, elbo: ticks.append(time.perf_counter()), **settings,
    )  # fmt: skip
    return 1e3 * float(np.diff(ticks).min()) / 20


def nuts(arrays: dict[str, np.ndarray]) -> pd.DataFrame:
    """Seconds of NumPyro's NUTS on the same model, its compilation included, and the means of its draws."""
    import jax
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(NUTS(radon.radon), num_warmup=1000, num_samples=1000, progress_bar=False)
    took, _ = seconds(
        lambda: (sampler.run(jax.random.key(0), **arrays), sampler.get_samples()["base"].block_until_ready())
    )
    draws = {name: np.asarray(values) for name, values in sampler.get_samples().items() if values.ndim == 1}
    rows = {name: {"nuts_mean": values.mean(), "nuts_sd": values.std()} for name, values in draws.items()}
    print(f"NUTS: {took:.1f} s")
    return pd.DataFrame(rows).T


def table_of(frame: pd.DataFrame) -> str:
    """All columns as Markdown."""
    return markdown(frame, list(frame))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HELP)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--updates", type=int, default=600)
    a = parser.parse_args()
    arrays = radon.data()
    built = {
        name: seconds(lambda build=build: build(**arrays))
        for name, build in (("NumPy", radon.by_hand), ("JAX", radon.in_jax), ("NumPyro", radon.in_numpyro))
    }
    models = {name: model for name, (_, model) in built.items()}
    table: dict[str, dict[str, float]] = {name: {"build_s": took} for name, (took, _) in built.items()}
    points = 0.3 * np.random.default_rng(0).normal(size=(112, 176))
    for m in (8, 112):
        calls = {name: lambda model=model, m=m: model.gradient(points[:m]) for name, model in models.items()}
        for name, ms in fastest(calls, 4 * a.rounds).items():
            table[name][f"gradient_ms_{m}"] = ms
    for _ in range(max(1, a.rounds // 10)):
        for name, model in models.items():
            table[name]["update_ms"] = min(table[name].get("update_ms", np.inf), update_ms(model, a.updates))
    fits = {}
    for name, model in models.items():
        table[name]["first_fit_s"], _ = seconds(lambda model=model: tv.fit(model, progress=False))
        table[name]["second_fit_s"], fits[name] = seconds(lambda model=model: tv.fit(model, progress=False))
        table[name]["elbo"], table[name]["std_error"] = fits[name].elbo.iloc[-1][["elbo", "std_error"]]
    frame = pd.DataFrame(table).T
    frame["update_over_numpy"] = frame["update_ms"] / frame.loc["NumPy", "update_ms"]
    print(table_of(frame.reset_index(names="written in")))
    summary = fits["NumPyro"].summary()[["mean", "sd"]]
    print(table_of(summary.join(nuts(arrays)).reset_index()))


if __name__ == "__main__":
    main()
