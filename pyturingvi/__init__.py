"""pyturingvi: structured black-box variational inference for hierarchical Bayesian models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyturingvi import data, errors, families, models, optimize, priors, theory, transforms
    from pyturingvi.bridge.runtime import start_julia
    from pyturingvi.comparisons.compare import compare
    from pyturingvi.comparisons.result import Comparison
    from pyturingvi.diagnosis.report import Diagnosis
    from pyturingvi.errors import ConvergenceWarning, PyTuringVIError, RefineWarning
    from pyturingvi.families import FullRank, Markov, MeanField, Structured
    from pyturingvi.fitting import fit
    from pyturingvi.layout import Layout
    from pyturingvi.nuts import NutsDraws, sample_nuts
    from pyturingvi.optimize.averaging import PolynomialAveraging
    from pyturingvi.optimize.natural_rule import NaturalGradient
    from pyturingvi.optimize.rules import SGD, Adam, ProjectedSGD, ProximalSGD
    from pyturingvi.optimize.schedules import step_decay
    from pyturingvi.problems import list_problems, load_problem
    from pyturingvi.result import Fit, load_fit
    from pyturingvi.support.registry import register
    from pyturingvi.sweeps.result import SweepResult, load_sweep
    from pyturingvi.sweeps.sweep import sweep

# Loaded on first use, so that importing the package imports no heavy library.
_WHERE = {
    "Adam": "optimize.rules",
    "Comparison": "comparisons.result",
    "ConvergenceWarning": "errors",
    "Diagnosis": "diagnosis.report",
    "Fit": "result",
    "FullRank": "families",
    "Layout": "layout",
    "Markov": "families",
    "MeanField": "families",
    "NaturalGradient": "optimize.natural_rule",
    "NutsDraws": "nuts",
    "PolynomialAveraging": "optimize.averaging",
    "ProjectedSGD": "optimize.rules",
    "ProximalSGD": "optimize.rules",
    "PyTuringVIError": "errors",
    "RefineWarning": "errors",
    "SGD": "optimize.rules",
    "Structured": "families",
    "SweepResult": "sweeps.result",
    "compare": "comparisons.compare",
    "fit": "fitting",
    "list_problems": "problems",
    "load_fit": "result",
    "load_problem": "problems",
    "load_sweep": "sweeps.result",
    "register": "support.registry",
    "sample_nuts": "nuts",
    "start_julia": "bridge.runtime",
    "step_decay": "optimize.schedules",
    "sweep": "sweeps.sweep",
}
_MODULES = ("data", "errors", "families", "models", "optimize", "priors", "theory", "transforms")

__all__ = [
    "SGD",
    "Adam",
    "Comparison",
    "ConvergenceWarning",
    "Diagnosis",
    "Fit",
    "FullRank",
    "Layout",
    "Markov",
    "MeanField",
    "NaturalGradient",
    "NutsDraws",
    "PolynomialAveraging",
    "ProjectedSGD",
    "ProximalSGD",
    "PyTuringVIError",
    "RefineWarning",
    "Structured",
    "SweepResult",
    "compare",
    "data",
    "errors",
    "families",
    "fit",
    "list_problems",
    "load_fit",
    "load_problem",
    "load_sweep",
    "models",
    "optimize",
    "priors",
    "register",
    "sample_nuts",
    "start_julia",
    "step_decay",
    "sweep",
    "theory",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("pyturingvi")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
