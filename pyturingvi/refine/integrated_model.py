"""The globals of a model as a model of their own: its log density is the integral over all locals."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pyturingvi.diagnosis.integrals import IntegratedDensity
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.support.array_namespace import Array


class IntegratedModel(Model):
    """`log p(z, x)` over the globals z alone, which natural gradients step like any other model's.

    Parameters
    ----------
    model : Model
        Whose locals are integrated out.
    integrals : IntegratedDensity
    """

    name: ClassVar[str] = "integrated"

    def __init__(self, model: Model, integrals: IntegratedDensity) -> None:
        self.integrals = integrals
        self.layout = Layout(model.layout.n_global, 0, 0)
        self.label = model.label

    def _log_density(self, points: Array) -> Array:
        return self.integrals.log_density(np.asarray(points))

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        return self.integrals.log_density_and_gradient(np.asarray(points))
