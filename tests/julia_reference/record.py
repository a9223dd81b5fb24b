"""Record log densities and gradients of the Julia models, for the numpy engine to be tested against everywhere.

Needs a Julia environment with the dependencies of `julia/Project.toml` and Zygote:

    PYTHON_JULIACALL_EXE=... PYTHON_JULIACALL_PROJECT=... python tests/julia_reference/record.py

Writes `models.npz`: for each model its data, three unconstrained points, Julia's log density at them and Zygote's
gradient; and `paths.npz`: the flat parameters of each model and family after 200 updates of Adam and of proximal SGD
along given noise. Under `about` stand the versions and the date.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from pyturingvi.data.simulate import simulate_irt, simulate_rpoisson, simulate_volatility

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "julia"


def data_of_models() -> dict[str, dict[str, np.ndarray]]:
    """Small data for each model, as their constructors in Python take them."""
    X, y = simulate_rpoisson(40, seed=1)[:2]
    return {
        "gaussian": {},
        "rpoisson": {"X": np.asarray(X), "y": np.asarray(y, dtype=float), "offset": np.linspace(-0.5, 0.5, 40)},
        "irt": {"responses": np.asarray(simulate_irt(30, 5, seed=1, missing=0.1), dtype=float)},
        "volatility": {"returns": np.asarray(simulate_volatility(25, 4, seed=1))},
    }


def julia_model(jl: Any, name: str, data: dict[str, np.ndarray]) -> Any:
    """The Julia model on the same data."""
    P = jl.PyTuringVI
    if name == "gaussian":
        return P.IsotropicGaussian(P.Layout(5, 4, 3), 5.0, 0.1)
    if name == "rpoisson":
        return P.RobustPoisson(*(jl.Array(data[key]) for key in ("X", "y", "offset")))
    if name == "irt":
        r = data["responses"].T
        return P.ItemResponse(jl.Array(np.where(np.isnan(r), 0.0, 2 * r - 1)))
    return P.StochasticVolatility(jl.Array(data["returns"].T))


N_UPDATES, N_SAMPLES = 200, 2
STEPSIZES = {"adam": 1e-2, "proximal_sgd": 1e-4}


def record_paths(jl: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Flat parameters after `N_UPDATES` updates from m = 0, C = 0.1 I along the same noise."""
    P = jl.PyTuringVI
    families = {
        "mean-field": P.MeanField(),
        "structured": P.Structured(),
        "structured-ns": P.Structured(standardized=False),
        "full-rank": P.FullRank(),
    }
    start = jl.seval(
        "(o, s) -> (x = zeros(o.pattern.dim + length(o.pattern.rowval));"
        " x[o.pattern.dim .+ PyTuringVI.diagonal(o.pattern)] .= s; x)"
    )
    run = jl.seval("(x, o, r, s, noise) -> PyTuringVI.run!(x, o, r, fill(s, size(noise, 3)), noise)")
    paths: dict[str, np.ndarray] = {}
    for name, data in data_of_models().items():
        model = julia_model(jl, name, data)
        noise = rng.standard_normal((N_UPDATES, N_SAMPLES, int(P.dim(model.layout)))).astype(np.float32)
        paths[f"{name}.noise"] = noise  # float32 keeps the file small; both sides compute in float64
        for family_name, family in families.items():
            for rule_name, stepsize in STEPSIZES.items():
                rule = getattr(P, rule_name)(stepsize)
                objective = P.Objective(model, family, energy_only=rule.energy_only)
                flat = start(objective, 0.1)
                made = run(flat, objective, rule, stepsize, jl.Array(noise.astype(float).transpose(2, 1, 0)))
                assert made == N_UPDATES, (name, family_name, rule_name, made)
                paths[f"{name}.{family_name}.{rule_name}"] = np.array(flat)
                print(name, family_name, rule_name, flush=True)
    return paths


def main() -> None:
    from juliacall import Main as jl

    jl.seval(f'push!(LOAD_PATH, raw"{SOURCE}")')
    jl.seval("using PyTuringVI, Zygote")
    value_of = jl.seval("(model, x) -> PyTuringVI.log_density(model, x)")
    slope_of = jl.seval("(model, x) -> Zygote.gradient(p -> sum(PyTuringVI.log_density(model, p)), x)[1]")
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for name, data in data_of_models().items():
        model = julia_model(jl, name, data)
        points = 0.5 * rng.standard_normal((3, int(jl.PyTuringVI.dim(model.layout))))
        columns = jl.Array(points.T)
        for key, value in data.items():
            arrays[f"{name}.data.{key}"] = value
        arrays[f"{name}.points"] = points
        arrays[f"{name}.log_density"] = np.array(value_of(model, columns))
        arrays[f"{name}.gradient"] = np.array(slope_of(model, columns)).T
    paths = record_paths(jl, rng)
    about = {
        "julia": str(jl.VERSION),
        "zygote": str(jl.seval("pkgversion(Zygote)")),
        "pyturingvi.jl": str(jl.seval("pkgversion(PyTuringVI)")),
        "numpy": np.__version__,
        "date": str(datetime.date.today()),
    }
    arrays["about"] = np.array(json.dumps(about))
    paths["about"] = arrays["about"]
    np.savez_compressed(HERE / "models.npz", **arrays)
    np.savez_compressed(HERE / "paths.npz", **paths)
    print(about)


if __name__ == "__main__":
    main()
