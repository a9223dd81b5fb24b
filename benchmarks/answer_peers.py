"""One peer on one problem, in a process of its own; the result as JSON. Used by `time_to_answer.py`.

Every peer's log density is first compared with ours, and its ELBO computed by ours at the same draws. Seconds begin
where the model and the library are loaded; compilation counts and is reported as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from answer_problems import CommonElbo, build, first_within
from machine import wait_until_quiet

from pyturingvi.comparisons.timing import busy_others

TOLERANCE = 1e-8  # of gradients, relative
CHUNK = 100  # updates between two looks at a peer's variational parameters
POINTS = 80  # of a trace, in geometric steps, at which the ELBO is computed
PARTICLES = 8  # as many draws a gradient as ours


def check(model: Any, theirs: Any) -> None:
    """Refuse a peer whose gradient is another; `theirs` gives log density and gradient at a flat point."""
    rng = np.random.default_rng(0)
    for spread in (0.1, 0.5):
        point = spread * rng.standard_normal(model.dim)
        slope, other = model.gradient(point)[0], np.asarray(theirs(point)[1])
        off = np.linalg.norm(other - slope) / np.linalg.norm(slope)
        if off > TOLERANCE:
            raise SystemExit(f"the peer's gradient differs from ours by a relative {off:.1e}")


class Trace:
    """Means and sds of a mean-field fit at increasing seconds; the clock stands while they are taken down."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.points: list[tuple[float, np.ndarray, np.ndarray]] = []
        self.go_on()

    def go_on(self) -> None:
        self.started = time.perf_counter()

    def pause(self) -> None:
        self.spent += time.perf_counter() - self.started

    def add(self, mean: Any, sd: Any) -> None:
        """Take down parameters, the clock standing."""
        self.points.append((self.spent, np.array(mean, dtype=float), np.array(sd, dtype=float)))


def numpyro_density(model: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """NumPyro's function and data, and its flat log density, checked against ours."""
    import jax
    from numpyro_models import flat_log_density, peer_of

    function, data = peer_of(model, "float64")
    density = flat_log_density(model, "float64")
    check(model, jax.jit(jax.value_and_grad(density)))
    return function, data, density


@contextmanager
def jax_timer() -> Iterator[dict[str, float]]:
    """Seconds of a block, and without what JAX says it spent on tracing and compiling there."""
    import jax

    compiling: list[tuple[float, float]] = []  # from when to when
    figures: dict[str, float] = {}

    def hear(event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            compiling.append((time.perf_counter() - duration, time.perf_counter()))

    jax.monitoring.register_event_duration_secs_listener(hear)
    start = time.perf_counter()
    yield figures
    figures["seconds"] = time.perf_counter() - start
    figures["without_compile"] = figures["seconds"] - covered([pair for pair in compiling if pair[0] >= start])


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals: one trace can lie within another."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def nuts(model: Any, a: argparse.Namespace) -> dict[str, Any]:
    """NumPyro's NUTS, 500 + 500 draws of one chain."""
    import jax
    from numpyro.diagnostics import summary
    from numpyro.infer import MCMC, NUTS

    function, data, _ = numpyro_density(model)
    with jax_timer() as figures:
        mcmc = MCMC(NUTS(function), num_warmup=a.draws, num_samples=a.draws, progress_bar=False)
        mcmc.run(jax.random.PRNGKey(0), *data)
        draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
    few = {name: value for name, value in draws.items() if value[0, 0].size < model.layout.n_local}
    sizes = [np.min(found["n_eff"]) for found in summary(few).values()]
    return {**figures, "least_ess": float(min(sizes))}


def autonormal(model: Any, a: argparse.Namespace) -> dict[str, Any]:
    """NumPyro's AutoNormal with Adam at each stepsize; the one that is first within a nat of the best of all."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    function, data, _ = numpyro_density(model)
    found = numpyro.handlers.trace(numpyro.handlers.seed(function, 0)).get_trace(*data)
    sites = [name for name, site in found.items() if site["type"] == "sample" and not site["is_observed"]]
    traces = {}
    for stepsize in a.stepsizes:
        traces[f"{stepsize:g}"] = trace = Trace()
        loss = Trace_ELBO(num_particles=PARTICLES, vectorize_particles=True)
        svi = SVI(function, AutoNormal(function, init_scale=0.1), numpyro.optim.Adam(stepsize), loss)
        state = svi.init(jax.random.PRNGKey(0), *data)
        loop = jax.jit(lambda s, n, svi=svi: jax.lax.fori_loop(0, n, lambda _, s: svi.update(s, *data)[0], s))
        for n in [1] + a.updates // CHUNK * [CHUNK]:  # the first update compiles
            state = jax.block_until_ready(loop(state, n))
            trace.pause()
            params = svi.get_params(state)
            trace.add(*(np.concatenate([np.ravel(params[f"{s}_auto_{k}"]) for s in sites]) for k in ("loc", "scale")))
            trace.go_on()
    return best_of(model, traces)


def advi(model: Any, a: argparse.Namespace) -> dict[str, Any]:
    """PyMC's ADVI with its own optimizer and stepsize, or with Adam(1e-2) if that is the faster."""
    import pymc as pm
    from pymc_models import density_and_gradient, peer_of

    peer = peer_of(model)
    check(model, lambda point: density_and_gradient(peer, point))
    ways: dict[str, Any] = {"default": {}, "0.01": {"obj_optimizer": pm.adam(learning_rate=1e-2)}}
    traces = {}
    for name, options in ways.items():
        traces[name] = trace = Trace()

        def look(approx: Any, losses: Any, i: int, trace: Trace = trace) -> None:
            if i > 1 and i % CHUNK:
                return
            trace.pause()
            values = [approx.groups[0].params_dict[key].get_value() for key in ("mu", "rho")]
            trace.add(values[0], np.logaddexp(0, values[1]))
            trace.go_on()

        with peer:
            pm.fit(a.updates, method="advi", callbacks=[look], progressbar=False, random_seed=0, **options)
    return best_of(model, traces)


def pathfinder(model: Any, a: argparse.Namespace) -> dict[str, Any]:
    """blackjax's Pathfinder with its own settings, from our starting point."""
    import blackjax
    import jax
    import jax.numpy as jnp

    density = numpyro_density(model)[2]
    with jax_timer() as figures:
        find = jax.jit(lambda key, x: blackjax.vi.pathfinder.approximate(key, density, x)[0])
        state = jax.block_until_ready(find(jax.random.PRNGKey(0), jnp.zeros(model.dim)))
    points, log_q = blackjax.vi.pathfinder.sample(jax.random.PRNGKey(1), state, 2_000)
    values = model.log_density(np.asarray(points)) - np.asarray(log_q)
    error = float(values.std(ddof=1) / np.sqrt(values.size))
    return {**figures, "elbo": float(values.mean()), "std_error": error}


def best_of(model: Any, traces: dict[str, Trace]) -> dict[str, Any]:
    """Which setting is first within a nat of the best ELBO that any has reached, and when; first points compile."""
    elbo = CommonElbo(model)
    found = {}
    for name, trace in traces.items():
        seen = np.unique(np.geomspace(1, len(trace.points), POINTS).round().astype(int)) - 1
        points = [trace.points[k] for k in seen]
        found[name] = [s for s, _, _ in points], [elbo(mean, sd) for _, mean, sd in points]
    best = max(np.nanmax(values) for _, values in found.values())
    times = {name: first_within(*trace, best) for name, trace in found.items()}
    name = min((name for name in times if not np.isnan(times[name])), key=lambda name: times[name])
    seconds = times[name]
    budget = found[name][0][-1]
    figures = {"seconds": seconds, "without_compile": seconds - found[name][0][0], "elbo": best}
    return {**figures, "setting": name, "watched_s": budget}


PEERS = {"nuts": nuts, "autonormal": autonormal, "advi": advi, "pathfinder": pathfinder}
NEEDS = {"nuts": ["numpyro"], "autonormal": ["numpyro"], "advi": ["pymc"], "pathfinder": ["blackjax", "numpyro"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("problem")
    parser.add_argument("--draws", type=int, default=500, help="NUTS: of warm-up, and again kept")
    parser.add_argument("--stepsizes", type=float, nargs="+", default=[1e-3, 1e-2, 1e-1])
    parser.add_argument("--updates", type=int, default=15_000, help="at each stepsize")
    parser.add_argument("--quiet", type=float, default=0.0)
    a = parser.parse_args()
    missing = [name for name in NEEDS[a.peer] if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    if "numpyro" in NEEDS[a.peer]:
        import jax

        jax.config.update("jax_enable_x64", True)
    model = build(a.problem)
    wait_until_quiet(a.quiet)
    others, load = busy_others(), os.getloadavg()[0]
    figures = PEERS[a.peer](model, a)
    print(json.dumps([{**figures, "other_cores": others(), "load": load}]))


if __name__ == "__main__":
    main()
