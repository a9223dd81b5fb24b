"""Record what real Julia runs give, for the numpy engine to be tested against everywhere.

Needs a Julia environment (`pyturingvi setup`):

    python tests/julia_reference/record.py

Writes `models.npz`: for each model its data, three unconstrained points, Julia's log density at them and Zygote's
gradient of it; and `paths.npz`: for each model and family the flat parameters after 200 updates of Adam and of
proximal SGD along given noise, and the ELBO trace of the Adam run (4,096 draws an estimate, Julia's own). Under
`about` stand the versions and the date. A wheel carries both files: without Julia, `tv.compare` compares with them.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

import pyturingvi as tv
from pyturingvi.comparisons.recorded import FAMILIES, RULES, model_on
from pyturingvi.data.simulate import simulate_irt, simulate_rpoisson, simulate_volatility

HERE = Path(__file__).parent
N_UPDATES, N_SAMPLES, ELBO_EVERY, ELBO_SAMPLES = 200, 2, 50, 4096


def data_of_models() -> dict[str, dict[str, np.ndarray]]:
    """Small data for each model, as their constructors in Python take them."""
    X, y = simulate_rpoisson(40, seed=1)[:2]
    return {
        "gaussian": {},
        "rpoisson": {"X": np.asarray(X), "y": np.asarray(y, dtype=float), "offset": np.linspace(-0.5, 0.5, 40)},
        "irt": {"responses": np.asarray(simulate_irt(30, 5, seed=1, missing=0.1), dtype=float)},
        "volatility": {"returns": np.asarray(simulate_volatility(25, 4, seed=1))},
    }


def record_models(runtime: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Julia's vectorized log density and Zygote's gradient of it, at three points of each model."""
    value_of = runtime.seval("(model, x) -> PyTuringVI.log_density(model, x)")
    slope_of = runtime.seval("(model, x) -> only(Zygote.gradient(p -> sum(PyTuringVI.log_density(model, p)), x))")
    arrays: dict[str, np.ndarray] = {}
    for name, data in data_of_models().items():
        model = model_on(name, data)
        points = 0.5 * rng.standard_normal((3, model.dim))
        inner, columns = model.to_julia(runtime), runtime.to_julia(points)
        arrays |= {f"{name}.data.{key}": value for key, value in data.items()}
        arrays[f"{name}.points"] = points
        arrays[f"{name}.log_density"] = np.array(runtime.call(value_of, inner, columns))
        arrays[f"{name}.gradient"] = np.array(runtime.to_numpy(runtime.call(slope_of, inner, columns)))
    return arrays


def record_paths(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Flat parameters after `N_UPDATES` updates from m = 0, C = 0.1 I along the same noise, and ELBO traces."""
    paths: dict[str, np.ndarray] = {}
    for name, data in data_of_models().items():
        model = model_on(name, data)
        noise = rng.standard_normal((N_UPDATES, N_SAMPLES, model.dim)).astype(np.float32)
        paths[f"{name}.noise"] = noise  # float32 keeps the file small; both sides compute in float64
        for family_name, family in FAMILIES.items():
            for rule_name, rule in RULES.items():
                fit = tv.fit(
                    model,
                    family,
                    rule,
                    n_iterations=N_UPDATES,
                    n_samples=N_SAMPLES,
                    noise=noise.astype(float),
                    elbo_every=ELBO_EVERY,
                    elbo_samples=ELBO_SAMPLES,
                    engine="julia",
                    progress=False,
                )
                assert (fit.status, fit.n_updates) == ("completed", N_UPDATES), (name, family_name, rule_name)
                paths[f"{name}.{family_name}.{rule_name}"] = fit.params
                if rule_name == "adam":
                    paths[f"{name}.{family_name}.elbo"] = fit.elbo[["iteration", "elbo", "std_error"]].to_numpy()
    return paths


def main() -> None:
    runtime = tv.start_julia()
    runtime.seval("using PyTuringVI: Zygote")
    rng = np.random.default_rng(0)
    arrays, paths = record_models(runtime, rng), record_paths(rng)
    about = {
        "julia": runtime.version,
        "zygote": str(runtime.seval("string(pkgversion(Zygote))")),
        "pyturingvi.jl": str(runtime.seval("string(pkgversion(PyTuringVI))")),
        "numpy": np.__version__,
        "date": str(datetime.date.today()),
    }
    for name, content in (("models", arrays), ("paths", paths)):
        np.savez_compressed(HERE / f"{name}.npz", **content, about=np.array(json.dumps(about)))
    print(about)


if __name__ == "__main__":
    main()
