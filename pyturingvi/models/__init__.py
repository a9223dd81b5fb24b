"""The bundled models, and wrappers for a model of your own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyturingvi.models.base import Model
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.models.irt import ItemResponse
from pyturingvi.models.jax import Jax
from pyturingvi.models.log_density import LogDensity
from pyturingvi.models.numpyro import NumPyro
from pyturingvi.models.pymc import PyMC
from pyturingvi.models.rpoisson import RobustPoisson
from pyturingvi.models.stan import Stan
from pyturingvi.models.turing import Turing
from pyturingvi.models.volatility import StochasticVolatility

__all__ = [
    "IsotropicGaussian",
    "ItemResponse",
    "Jax",
    "LogDensity",
    "Model",
    "NumPyro",
    "PyMC",
    "RobustPoisson",
    "Stan",
    "StochasticVolatility",
    "Turing",
    "model_class",
]


for _class in (
    IsotropicGaussian,
    ItemResponse,
    Jax,
    LogDensity,
    NumPyro,
    PyMC,
    RobustPoisson,
    Stan,
    StochasticVolatility,
    Turing,
):
    Model.registry.add(_class)


def model_class(name: str, description: Mapping[str, Any] = MappingProxyType({})) -> type[Model]:
    """The model class with this `name`, as written in a saved fit with the description beside it."""
    return Model.registry.find(name, description)
