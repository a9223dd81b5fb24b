"""A long run of NumPyro's NUTS on the volatility model: the referee of `volatility_families.py`.

The real series of volatility-small (six currencies, 262 days) and three simulated ones. Two of the four chains start
from slow volatility (phi 0.95, tau 0.2) and two from heavy-tailed days (phi 0.1, tau 1), so that r-hat would tell of
regimes that a chain does not leave. Writes `results/volatility_nuts.csv`, a row a variable. Needs `numpyro`; about an
hour on one core.

    python experiments/volatility_nuts.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pyturingvi as tv
from pyturingvi.data import simulate_volatility
from pyturingvi.support.files import write_table

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"  # NumPyro's form of the model
RESULTS = Path(__file__).parent / "results"
SIMULATED = {  # mean, persistence and scale of the log variance, and the seed
    "slow": {"mu": 0.005, "phi": 0.98, "tau": 0.2, "seed": 1},
    "middling": {"mu": 0.005, "phi": 0.95, "tau": 0.3, "seed": 2},
    "fast": {"mu": 0.005, "phi": 0.8, "tau": 0.6, "seed": 3},
}
N_DAYS = 500
STARTS = ((0.95, 0.2), (0.1, 1.0), (0.95, 0.2), (0.1, 1.0))  # phi and tau of each chain
TARGET_ACCEPTANCE = 0.9


def cases() -> dict[str, tv.models.StochasticVolatility]:
    """The simulated series, then the real ones."""
    found: dict[str, tv.models.StochasticVolatility] = {
        name: tv.models.StochasticVolatility(simulate_volatility(N_DAYS, 1, correlation=0.0, **truth))
        for name, truth in SIMULATED.items()
    }
    return {**found, "volatility-small": tv.load_problem("volatility-small")}


def start(model: tv.models.StochasticVolatility, phi: float, tau: float, seed: int) -> np.ndarray:
    """An unconstrained point (d,) with the returns' own level, and a path near it."""
    level = np.log(np.mean(model.returns**2, axis=0))
    n_times, size = model.returns.shape
    y = level + 0.1 * np.random.default_rng(seed).standard_normal((n_times, size))
    vector = np.full(size, 1.0)
    return model.unconstrain({"mu": level, "phi": phi * vector, "tau": tau * vector, "L": np.eye(size), "y": y})[0]


def run(model: tv.models.StochasticVolatility, warmup: int, draws: int) -> tuple[dict[str, np.ndarray], int, float]:
    """Draws (chains, draws, ...) of each variable in the natural space, divergences, and seconds."""
    import jax
    from numpyro.infer import MCMC, NUTS
    from numpyro_models import peer_of, relative_differences, unconstrained

    off = max(relative_differences(model))
    if off > 1e-8:
        raise SystemExit(f"NumPyro's density is another: it differs by a relative {off:.1e}")
    function, data = peer_of(model, "float64")
    points = [unconstrained(model, start(model, *pair, seed)) for seed, pair in enumerate(STARTS)]
    initial = jax.tree.map(lambda *values: jax.numpy.stack(values), *points)
    kernel = NUTS(function, target_accept_prob=TARGET_ACCEPTANCE)
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=len(STARTS),
        chain_method="sequential",
        progress_bar=False,
    )
    begin = time.perf_counter()
    mcmc.run(jax.random.PRNGKey(0), *data, init_params=initial, extra_fields=("diverging",))
    found = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    return found, int(mcmc.get_extra_fields()["diverging"].sum()), time.perf_counter() - begin


def summarize(model: tv.models.StochasticVolatility, draws: dict[str, np.ndarray]) -> pd.DataFrame:
    """Mean, sd, quantiles, r-hat and effective sample size of mu, phi and tau of each series."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    rows = {}
    for name in ("mu", "phi", "tau"):
        for k, series in enumerate(model.series):
            chains = draws[name][:, :, k].astype(float)
            q5, median, q95 = np.quantile(chains, [0.05, 0.5, 0.95])
            rows[f"{name}[{series}]"] = {
                "nuts_mean": chains.mean(),
                "nuts_sd": chains.std(ddof=1),
                "nuts_q5": q5,
                "nuts_median": median,
                "nuts_q95": q95,
                "r_hat": float(split_gelman_rubin(chains)),
                "ess": float(effective_sample_size(chains)),
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmup", type=int, default=1_000)
    parser.add_argument("--draws", type=int, default=3_000, help="of each chain")
    parser.add_argument("--keep", type=Path, help="a folder for all draws of the globals, beside the summary")
    a = parser.parse_args()
    sys.path.insert(0, str(BENCHMARKS))
    import jax

    jax.config.update("jax_enable_x64", True)
    tables: list[Any] = []
    for name, model in cases().items():
        draws, divergent, seconds = run(model, a.warmup, a.draws)
        if a.keep is not None:
            paths = draws["y"].reshape(-1, *draws["y"].shape[2:])
            kept = {key: value for key, value in draws.items() if key != "y"}
            np.savez(a.keep / f"{name}.npz", **kept, y_mean=paths.mean(axis=0), y_sd=paths.std(axis=0))
        found = summarize(model, draws).assign(case=name, divergent=divergent, seconds=round(seconds, 1))
        print(f"{name}: {seconds:.0f} s, {divergent} divergent\n{found.round(4).to_string()}", flush=True)
        tables.append(found)
        write_table(RESULTS / "volatility_nuts.csv", pd.concat(tables), index=True, float_format="%.6g")


if __name__ == "__main__":
    main()
