"""The bundled models, and a wrapper for a log density of your own."""

from pyturingvi.errors import unknown_name
from pyturingvi.models.base import Model
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.models.irt import ItemResponse
from pyturingvi.models.log_density import LogDensity
from pyturingvi.models.rpoisson import RobustPoisson
from pyturingvi.models.turing import Turing
from pyturingvi.models.volatility import StochasticVolatility

__all__ = [
    "IsotropicGaussian",
    "ItemResponse",
    "LogDensity",
    "Model",
    "RobustPoisson",
    "StochasticVolatility",
    "Turing",
    "model_class",
]


def model_class(name: str) -> type[Model]:
    """The model class with this `name`, as written in a saved fit."""
    known: dict[str, type[Model]] = {
        cls.name: cls
        for cls in (IsotropicGaussian, ItemResponse, LogDensity, RobustPoisson, StochasticVolatility, Turing)
    }
    if name not in known:
        raise unknown_name("model", name, known)
    return known[name]
