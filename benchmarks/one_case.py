"""Time one case in a process of its own and print the result as JSON. Used by `iteration_time.py`."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from typing import Any

import numpy as np

SAMPLES, STEPSIZE = 8, 1e-4


def peak_mib() -> float:
    """Largest resident size of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load(problem: str) -> Any:
    """A problem of the paper, the item response ones simulated."""
    import pyturingvi as tv

    return tv.load_problem(problem, simulated=problem.startswith("irt"))


def ours(problem: str, family: str, dtype: str, seconds: float) -> dict[str, float]:
    """Milliseconds per iteration of the embedded engine: noise, gradient and Adam, no ELBO trace."""
    import pyturingvi as tv
    from pyturingvi.engines.base import FitSpec
    from pyturingvi.engines.numpy_engine import NumpyEngine
    from pyturingvi.families import get_family
    from pyturingvi.monitor import RunMonitor

    model = load(problem)
    chosen = tv.Structured(standardized=False) if family == "structured-ns" else get_family(family)
    spec = FitSpec(
        model=model.label, model_digest="", family=chosen.config(), optimizer=tv.Adam(STEPSIZE).config(),
        n_iterations=10**9, n_samples=SAMPLES, elbo_every=10**9, elbo_samples=1,
        init={"location": 0.0, "scale": 0.1}, seed=0, engine="numpy", device="cpu", dtype=dtype, noise=None,
        averaging=None,
    )  # fmt: skip
    before = peak_mib()
    initial = chosen.bind(model.layout).initial_flat(np.zeros(model.dim), 0.1)
    times: list[float] = []
    start = time.perf_counter()

    def stop(iteration: int, work: Any) -> bool:
        times.append(time.perf_counter())
        return iteration >= 20 and times[-1] - start > seconds

    NumpyEngine().run(model, spec, initial, None, RunMonitor(spec), observer=stop)
    steps = np.diff(times)[5:] * 1e3
    chunks = [float(c.mean()) for c in np.array_split(steps, min(20, steps.size))]
    return {"ms": statistics.median(chunks), "ms_min": min(chunks), "peak_mib": peak_mib() - before, "compile_s": 0.0}


def numpyro(problem: str, family: str, dtype: str, seconds: float) -> dict[str, float]:
    """Milliseconds per iteration of NumPyro's SVI in one compiled loop; compilation is reported apart."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import numpyro as npr
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
    from numpyro_models import log_density, peer_of

    model = load(problem)
    point = 0.1 * np.random.default_rng(0).standard_normal(model.dim)
    here = float(model.log_density(point)[0])
    relative = abs(log_density(model, point, dtype) - here) / abs(here)
    function, data = peer_of(model, dtype)
    before = peak_mib()
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
    start = time.perf_counter()
    state = jax.block_until_ready(compiled(state, 3))
    per = (time.perf_counter() - start) / 3
    n = max(1, int(seconds / 10 / per))
    chunks = []
    for _ in range(10):
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state, n))
        chunks.append((time.perf_counter() - start) / n * 1e3)
    return {
        "ms": statistics.median(chunks),
        "ms_min": min(chunks),
        "peak_mib": peak_mib() - before,
        "compile_s": compile_s,
        "log_density_relative_difference": relative,
    }


def floor(problem: str, family: str, dtype: str, seconds: float) -> dict[str, float]:
    """Drawing the noise, plus reading and writing parameters, gradient and Adam's two moments once."""
    from pyturingvi.families import get_family
    from pyturingvi.families.base_distributions import Gaussian
    from pyturingvi.optimize.noise import generator

    model = load(problem)
    p = get_family("structured" if family == "structured-ns" else family).n_params(model.layout)
    noise = np.empty((SAMPLES, model.dim), dtype=dtype)
    vectors = [np.ones(p, dtype=dtype) for _ in range(4)]
    source, base = generator(np, 0), Gaussian()
    times, start = [], time.perf_counter()
    while len(times) < 20 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        base.fill(source, noise)
        for vector in vectors:
            np.negative(vector, out=vector)
        times.append((time.perf_counter() - begin) * 1e3)
    return {"ms": statistics.median(times), "ms_min": min(times), "peak_mib": 0.0, "compile_s": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["ours", "numpyro", "floor"])
    parser.add_argument("problem")
    parser.add_argument("family")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--seconds", type=float, default=4.0)
    a = parser.parse_args()
    result = {"ours": ours, "numpyro": numpyro, "floor": floor}[a.side](a.problem, a.family, a.dtype, a.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
