"""One of the five models through one front door, in a process of its own; the result as JSON. Used by `doors.py`.

Parts: `fit`, our fit and what it costs; `vi`, the language's own variational inference; `nuts`, its own sampler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from door_data import DATA
from door_sources import DOORS, Door, Values
from machine import settings

import pyturingvi as tv
from pyturingvi.comparisons.timing import busy_others

POINTS = 6  # at which log densities are compared
DRAWS = 20_000  # of a fit, for its means
UPDATES = 10_000
STEPSIZES = [1e-3, 1e-2, 1e-1]
FIT = "fit = tv.fit(model, progress=False)"


# ---- our fit ------------------------------------------------------------------------------------------------
def fit(door: Door, data: Values) -> dict[str, Any]:
    """Both lines as a user writes them, timed; the fit again, without what is compiled at the first; refined."""
    names: dict[str, Any] = {"tv": tv, "source": door.source, "data": data}
    row: dict[str, Any] = {"model_lines": door.code, "lines_more": len([door.line, FIT])}
    timed(row, "build", lambda: exec(door.line, names))
    timed(row, "fit", lambda: exec(FIT, names))
    timed(row, "fit_again", lambda: exec(FIT, names))
    model, found = names["model"], names["fit"]
    row |= {"d": model.dim, "structure": model.structure, "family": found.family.name, "status": found.status}
    row |= {"difference": largest_difference(model, door), "verdict": found.diagnose().verdict}
    row["elbo"], row["elbo_se"] = found.elbo.iloc[-1][["elbo", "std_error"]]
    means = {"fit": global_means(model, found.sample(DRAWS, local=False))}
    try:
        refined = timed(row, "refine", lambda: found.refine(progress=False))
    except tv.errors.PyTuringVIError as error:
        row["not_refined"] = str(error).splitlines()[0]
    else:
        row["refine_ess"] = refined.refined.ess
        means["refined"] = global_means(model, refined.sample(DRAWS, local=False))
    return {**row, "means": means}


def largest_difference(model: Any, door: Door) -> float:
    """Relative, of our log density from the source's at random points."""
    rng = np.random.default_rng(0)
    points = np.concatenate([spread * rng.normal(size=(POINTS // 2, model.dim)) for spread in (0.1, 0.5)])
    ours, values = model.log_density(points), model.constrain(points)
    theirs = np.array([door.density({name: value[m] for name, value in values.items()}) for m in range(len(points))])
    return float((np.abs(ours - theirs) / np.abs(theirs)).max())


def global_means(model: Any, draws: Values) -> dict[str, list[float]]:
    """Mean and sd of each element of each global variable, `log x` of a JAX function taken as x."""
    found = {}
    for name in model.global_names:
        flat = draws[name].reshape(len(draws[name]), -1)
        if name.startswith("log "):
            name, flat = name.removeprefix("log "), np.exp(flat)
        for k, column in enumerate(flat.T):
            found[f"{name}[{k}]" if flat.shape[1] > 1 else name] = [float(column.mean()), float(column.std(ddof=1))]
    return found


# ---- the language's own variational inference ---------------------------------------------------------------
def numpyro_vi(door: Door, data: Values) -> dict[str, Any]:
    """AutoNormal at the stepsize of three that ends highest."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    numpyro.enable_x64()
    rows = []
    for stepsize in STEPSIZES:
        guide = AutoNormal(door.source)
        loss = Trace_ELBO(num_particles=8, vectorize_particles=True)
        svi = SVI(door.source, guide, numpyro.optim.Adam(stepsize), loss)
        row: dict[str, Any] = {"vi": f"AutoNormal, Adam({stepsize:g})"}
        end = timed(row, "vi", lambda svi=svi: svi.run(jax.random.key(0), UPDATES, progress_bar=False, **data))

        @jax.jit
        def elbos(keys: Any, params: Any, guide: Any = guide) -> Any:
            one = Trace_ELBO()
            return jax.lax.map(lambda key: -one.loss(key, params, door.source, guide, **data), keys)

        values = np.asarray(elbos(jax.random.split(jax.random.key(1), 2_000), end.params))
        rows.append({**row, **mean_of(values)})
    return max(rows, key=lambda row: np.nan_to_num(row["vi_elbo"], nan=-np.inf))


def pymc_vi(door: Door, data: Values) -> dict[str, Any]:
    """ADVI with its own optimizer or Adam(0.01), which ends higher; the ELBO is that of its last 2,000 updates."""
    import pymc as pm

    rows = []
    for name, options in {"ADVI": {}, "ADVI, Adam(0.01)": {"obj_optimizer": pm.adam(learning_rate=1e-2)}}.items():
        row: dict[str, Any] = {"vi": name}
        settings = {"method": "advi", "progressbar": False, "random_seed": 0, **options}
        with door.source:
            found = timed(row, "vi", lambda settings=settings: pm.fit(UPDATES, **settings))
        rows.append({**row, **mean_of(-found.hist[-2_000:])})
    return max(rows, key=lambda row: np.nan_to_num(row["vi_elbo"], nan=-np.inf))


def mean_of(values: np.ndarray) -> dict[str, float]:
    return {"vi_elbo": float(values.mean()), "vi_elbo_se": float(values.std(ddof=1) / np.sqrt(values.size))}


# ---- its own sampler ----------------------------------------------------------------------------------------
def numpyro_nuts(door: Door, data: Values, n: int) -> dict[str, Any]:
    """Two chains, one after the other; where the problem asks for it, some sites as standard variables."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS
    from numpyro.infer.reparam import LocScaleReparam

    numpyro.enable_x64()
    function = numpyro.handlers.reparam(door.source, config={name: LocScaleReparam(0) for name in door.standard})
    sampler = MCMC(
        NUTS(function), num_warmup=n, num_samples=n, num_chains=2, chain_method="sequential", progress_bar=False
    )
    row: dict[str, Any] = {}
    timed(row, "nuts", lambda: (sampler.run(jax.random.key(0), **data), jax.block_until_ready(sampler.get_samples())))
    draws = {name: np.asarray(values) for name, values in sampler.get_samples(group_by_chain=True).items()}
    divergent = int(np.sum(sampler.get_extra_fields()["diverging"]))
    return judged({**row, "nuts_divergent": divergent}, draws)


def pymc_nuts(door: Door, data: Values, n: int) -> dict[str, Any]:
    """`pm.sample`, two chains, one after the other, on the model as it is."""
    import pymc as pm

    settings = {"chains": 2, "cores": 1, "random_seed": 0, "progressbar": False, "compute_convergence_checks": False}
    row: dict[str, Any] = {}
    with door.source:
        tree = timed(row, "nuts", lambda: pm.sample(n, tune=n, **settings))
    draws = {name: np.asarray(values) for name, values in tree.posterior.data_vars.items()}
    return judged({**row, "nuts_divergent": int(tree.sample_stats["diverging"].sum())}, draws)


def stan_nuts(door: Door, data: Values, n: int) -> dict[str, Any]:
    """Stan's sampler as PyStan has it, two chains; the compilation is apart, in `nuts_build_s`."""
    import stan

    code, stan_data = door.source
    plain = {name: np.asarray(value).tolist() for name, value in stan_data.items()}
    row: dict[str, Any] = {}
    model = timed(row, "nuts_build", lambda: stan.build(code, data=plain, random_seed=1))
    found = timed(row, "nuts", lambda: model.sample(num_chains=2, num_samples=n, num_warmup=n))
    draws = {}
    for name in found.param_names:
        values = found[name]  # (..., draws, chains last, one after the other within a draw)
        draws[name] = np.moveaxis(values, -1, 0).reshape((n, 2, *values.shape[:-1])).swapaxes(0, 1)
    return judged({**row, "nuts_divergent": int(found["divergent__"].sum())}, draws)


def judged(row: dict[str, Any], draws: Values) -> dict[str, Any]:
    """Largest R-hat and least effective sample size of all variables, and the means of each."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    means, r_hat, sizes = {}, 1.0, np.inf
    for name, values in draws.items():
        flat = values.reshape((*values.shape[:2], -1))
        for k in range(flat.shape[2]):
            one = flat[:, :, k].astype(float)
            if one.std() < 1e-9:  # a constant, as on the diagonal of a correlation matrix
                continue
            means[f"{name}[{k}]" if flat.shape[2] > 1 else name] = [float(one.mean()), float(one.std(ddof=1))]
            r_hat = max(r_hat, float(split_gelman_rubin(one)))
            sizes = min(sizes, float(effective_sample_size(one)))
    size = next(iter(draws.values())).shape[1]
    return {**row, "nuts_draws": size, "nuts_r_hat": r_hat, "nuts_ess": sizes, "means": {"nuts": means}}


def timed(row: dict[str, Any], name: str, call: Callable[[], Any]) -> Any:
    """What a call gave; the row gets its wall time as `name_s`, the processor's, with compilers, as `name_cpu_s`."""
    start, used = time.perf_counter(), sum(os.times()[:4])
    found = call()
    row |= {f"{name}_s": time.perf_counter() - start, f"{name}_cpu_s": sum(os.times()[:4]) - used}
    return found


VI = {"NumPyro": numpyro_vi, "PyMC": pymc_vi}
NUTS = {"NumPyro": numpyro_nuts, "PyMC": pymc_nuts, "Stan": stan_nuts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=DATA)
    parser.add_argument("door", choices=DOORS)
    parser.add_argument("part", choices=["fit", "vi", "nuts"])
    parser.add_argument("--draws", type=int, default=1000, help="of NUTS, a chain, and as many to adapt")
    a = parser.parse_args()
    data = DATA[a.problem]()
    door = DOORS[a.door](a.problem, data)
    others = busy_others()
    warnings.simplefilter("ignore", tv.ConvergenceWarning)  # the verdict says it too
    warnings.simplefilter("ignore", tv.RefineWarning)
    if a.part == "fit":
        row = fit(door, data)
    elif a.part == "vi":
        row = VI[a.door](door, data)
    else:
        row = NUTS[a.door](door, data, a.draws)
    sys.stdout.flush()
    made = {name: settings()[name] for name in ("machine_cores", "date")}
    about = {"others": others(), "load": os.getloadavg()[0], "on": settings()["cpu"]}
    print(json.dumps({**row, **made, **{f"{a.part}_{name}": value for name, value in about.items()}}))


if __name__ == "__main__":
    main()
