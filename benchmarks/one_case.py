"""Time one case in a process of its own and print the result as JSON. Used by `iteration_time.py`."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from machine import Peak, wait_until_quiet

from pyturingvi.comparisons.timing import busy_others, update_times

SAMPLES, STEPSIZE = 8, 1e-4
CHUNK_SECONDS = 0.1  # what `update_times` takes for a chunk too
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}


def load(problem: str) -> Any:
    """A problem of the paper, the item response ones simulated; `-missing` blanks a tenth of their cells."""
    import pyturingvi as tv

    model = tv.load_problem(problem.removesuffix("-missing"), simulated=problem.startswith("irt"))
    if problem.endswith("-missing"):
        responses = model.responses.astype(float)
        responses[np.random.default_rng(0).random(responses.shape) < 0.1] = np.nan
        model = tv.models.ItemResponse(responses)
    return model


def family_of(name: str) -> Any:
    """The family that a table calls `name`."""
    import pyturingvi as tv
    from pyturingvi.families import get_family

    return tv.Structured(standardized=False) if name == "structured-ns" else get_family(name)


def time_ours(model: Any, family: str, dtype: str, seconds: float) -> list[float]:
    """Milliseconds an update, one number for each tenth of a second: noise, gradient and Adam."""
    import pyturingvi as tv

    def run(n: int, **options: Any) -> Any:
        shared = {"n_samples": SAMPLES, "elbo_samples": 1, "engine": "numpy", "dtype": dtype}
        return tv.fit(model, family_of(family), tv.Adam(STEPSIZE), n_iterations=n, progress=False, **shared, **options)

    return update_times(run, seconds)


def time_floor(model: Any, family: str, dtype: str, seconds: float) -> list[float]:
    """Drawing the noise, plus reading and writing parameters, gradient and Adam's two moments once."""
    from pyturingvi.families.base_distributions import Gaussian
    from pyturingvi.optimize.noise import generator

    p = family_of(family).n_params(model.layout)
    noise = np.empty((SAMPLES, model.dim), dtype=dtype)
    vectors = [np.ones(p, dtype=dtype) for _ in range(4)]
    source, base = generator(np, 0), Gaussian()
    chunks: list[float] = []
    start = time.perf_counter()
    while not chunks or time.perf_counter() - start < seconds:
        n, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < CHUNK_SECONDS:
            base.fill(source, noise)
            for vector in vectors:
                np.negative(vector, out=vector)
            n += 1
        chunks.append((time.perf_counter() - begin) / n * 1e3)
    return chunks


def ours(problem: str, family: str, dtype: str, seconds: float, quiet: float) -> dict[str, Any]:
    """One case of the numpy engine, and its floor."""
    import scipy.sparse  # noqa: F401  (an import is not part of a fit's memory)

    model = load(problem)
    model.log_density_and_gradient(np.zeros(model.dim))
    wait_until_quiet(quiet)
    peak, others = Peak(), busy_others()
    chunks = time_ours(model, family, dtype, seconds)
    result = {
        "chunks": chunks,
        "peak_mib": peak.growth(),
        "whole_mib": peak.whole(),
        "other_cores": others(),
    }
    return {**result, "floor": time_floor(model, family, dtype, min(seconds, 0.5))}


def numpyro(problem: str, family: str, dtype: str, seconds: float, quiet: float) -> dict[str, Any]:
    """One case of NumPyro's SVI, many steps in one compiled loop; compilation is reported apart."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import numpyro as npr
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
    from numpyro_models import peer_of, relative_differences

    model = load(problem)
    density, slope = relative_differences(model, dtype)
    if max(density, slope) > TOLERANCE[dtype]:
        raise SystemExit(f"NumPyro's {problem} differs: density {density:.1e}, gradient {slope:.1e}")
    function, data = peer_of(model, dtype)
    peak = Peak()
    guide = {"mean-field": AutoNormal, "full-rank": AutoMultivariateNormal}[family](function, init_scale=0.1)
    elbo = Trace_ELBO(num_particles=SAMPLES, vectorize_particles=True)
    svi = SVI(function, guide, npr.optim.Adam(STEPSIZE), elbo)
    state = svi.init(jax.random.PRNGKey(0), *data)

    def loop(state: Any, n: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, s: svi.update(s, *data)[0], state)

    start = time.perf_counter()
    compiled = jax.jit(loop)
    state = jax.block_until_ready(compiled(state, 1))
    compile_s = time.perf_counter() - start
    wait_until_quiet(quiet)
    others = busy_others()
    per = []
    for _ in range(3):
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state, 2))
        per.append((time.perf_counter() - start) / 2)
    n = max(1, round(CHUNK_SECONDS / min(per)))
    chunks: list[float] = []
    begin = time.perf_counter()
    while len(chunks) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state, n))
        chunks.append((time.perf_counter() - start) / n * 1e3)
    return {
        "chunks": chunks,
        "peak_mib": peak.growth(),
        "whole_mib": peak.whole(),
        "other_cores": others(),
        "compile_s": compile_s,
        "density_difference": density,
        "gradient_difference": slope,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["ours", "numpyro"])
    parser.add_argument("problem")
    parser.add_argument("family")
    parser.add_argument("--dtype", default="float64", choices=TOLERANCE)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quiet", type=float, default=0.0)
    a = parser.parse_args()
    side = {"ours": ours, "numpyro": numpyro}[a.side]
    result = side(a.problem, a.family, a.dtype, a.seconds, a.quiet)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
