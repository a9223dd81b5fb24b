"""What real Julia runs gave, kept for a machine without Julia: small cases of the bundled models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyturingvi.errors import DataError
from pyturingvi.families import Family, FullRank, Markov, MeanField, Structured
from pyturingvi.models import Model, model_class
from pyturingvi.optimize.rules import Adam, ProximalSGD, Rule

# the recorded paths: their names in the file, and what they are runs of
FAMILIES: dict[str, Family] = {
    "mean-field": MeanField(),
    "structured": Structured(),
    "structured-ns": Structured(standardized=False),
    "markov": Markov(),
    "full-rank": FullRank(),
}
RULES: dict[str, Rule] = {"adam": Adam(1e-2), "proximal_sgd": ProximalSGD(1e-4)}


def model_on(kind: str, data: dict[str, Any]) -> Model:
    """A model of this kind on the recorded data; the Gaussian has none."""
    build: type[Any] = model_class(kind)
    model: Model = build(**(data or {"n_local": 4}))
    return model


@dataclass(frozen=True)
class RecordedPath:
    """One run of Julia: along `noise` (T, M, d) it ended at `params` (p,).

    `elbo` (K, 3) is its trace, if it was recorded: iteration, ELBO, Monte Carlo error.
    """

    family: Family
    rule: Rule
    noise: np.ndarray
    params: np.ndarray
    elbo: np.ndarray | None


def reference_directory() -> Path:
    """The recorded files: inside the Python package of a wheel, with the tests in a clone.

    Raises
    ------
    DataError
        If they are in neither place.
    """
    here = Path(__file__).parents[1]
    for path in (here / "julia_reference", here.parent / "tests" / "julia_reference"):
        if (path / "models.npz").is_file() and (path / "paths.npz").is_file():
            return path
    raise DataError(
        "The recorded Julia reference (models.npz, paths.npz) is missing from this installation; install pyturingvi "
        "again, or set up Julia with `pyturingvi setup`."
    )


def recorded_kinds() -> list[str]:
    """The `name` of each model that was recorded."""
    with np.load(reference_directory() / "models.npz", allow_pickle=False) as models:
        return [key.removesuffix(".points") for key in models.files if key.endswith(".points")]


class RecordedReference:
    """The recorded runs of one kind of model.

    Parameters
    ----------
    kind : str
        One of `recorded_kinds()`.
    """

    def __init__(self, kind: str) -> None:
        folder, start = reference_directory(), f"{kind}."
        self.kind = kind
        self._arrays: dict[str, np.ndarray] = {}
        for name in ("models.npz", "paths.npz"):
            with np.load(folder / name, allow_pickle=False) as file:
                self.about: dict[str, str] = json.loads(str(file["about"]))
                self._arrays |= {key.removeprefix(start): file[key] for key in file.files if key.startswith(start)}

    @property
    def source(self) -> str:
        """Date and Julia version of the record."""
        return f"recorded reference of {self.about['date']}, Julia {self.about['julia']}"

    def model(self) -> Model:
        """The Python model on the recorded data, its shape in its label."""
        data = {key.removeprefix("data."): self._arrays[key] for key in self._arrays if key.startswith("data.")}
        model = model_on(self.kind, data)
        model.label = f"recorded {self.kind} (N={model.layout.n_local}, d={model.dim})"
        return model

    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unconstrained points (M, d), Julia's log densities (M,) and Zygote's gradients (M, d)."""
        return self._arrays["points"], self._arrays["log_density"], self._arrays["gradient"]

    def path(self, family: Family, rule: str) -> RecordedPath | None:
        """The run of this family and this kind of rule, or None where none was recorded."""
        family_key = next((key for key, known in FAMILIES.items() if known == family), None)
        rule_key = next((key for key, known in RULES.items() if known.name == rule), None)
        if family_key is None or rule_key is None:
            return None
        noise = self._arrays["noise"].astype(np.float64)
        params = self._arrays[f"{family_key}.{rule_key}"]
        elbo = self._arrays[f"{family_key}.elbo"] if rule == "adam" else None
        return RecordedPath(family, RULES[rule_key], noise, params, elbo)
