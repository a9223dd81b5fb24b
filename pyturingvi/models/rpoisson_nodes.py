"""Robust Poisson regression at the nodes of integrals over its log rates, without a point for each node."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.models.parts import LOG_2PI
from pyturingvi.models.rpoisson_centred import CentredForm
from pyturingvi.models.rpoisson_prior import scales_and_coefficients_gradient

if TYPE_CHECKING:
    from pyturingvi.models.rpoisson import RobustPoisson


class CentredNodes:
    """Terms of rows at log rates `centre + scale * t` for standard nodes t, and slopes of the rows' integrals.

    Over t the log of a term is a quadratic less `exp(eta)`, and its slopes in the globals know a log rate by its first
    two moments alone.

    Parameters
    ----------
    model : RobustPoisson
        Whose locals are the log rates.
    nodes : (K, 1 or N, 1) array
    usual : (N, 1, 1) array
        The scale that most z have, seen by its stride of 0.
    """

    def __init__(self, model: RobustPoisson, nodes: np.ndarray, usual: np.ndarray) -> None:
        self.model, self.t, self.usual = model, nodes[..., 0], usual
        self.row_bytes = 32 * len(nodes) * model.layout.n_local  # that are worked on for each z
        self._constant = model._log_factorials + 0.5 * LOG_2PI
        self._sizes = model._sizes * [1, 1, 0]
        self._form, self._kept = CentredForm(model), threading.local()

    def terms(self, z: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Global term (m,) at z (m, d_z), local terms (m, K, N) around `centre` (m, N, 1), `scale` (m, N, 1, 1).

        The next call of the same thread overwrites the latter.
        """
        middle, width, y = centre[..., 0], scale[..., 0, 0], self.model.y
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            residual = self._form.residual(z, middle)
            precision = np.exp(-2.0 * z[:, 2:3])
            pull = precision * residual
            level = y * middle - 0.5 * pull * residual - self._constant - z[:, 2:3]
            slope = width * (y - pull)
            bend = -0.5 * precision * width * width
            found, held = self._buffers(len(z))
            rate = np.exp(middle)
            stretched = None if width.strides[0] else self._stretched
            for k, t in enumerate(self.t):  # one node of all z at a time stays in cache
                part = np.multiply(bend, t, out=found[k])
                part += slope
                part *= t
                part += level
                part -= np.exp(middle + width * t) if stretched is None else np.multiply(rate, stretched[k], out=held)
            return self.model._global_term(z), found.transpose(1, 0, 2)

    def slopes(self, z: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Gradient (m, d_z) of the log density of z with the rows integrated out.

        Parameters
        ----------
        mean, covariance : (m, N, 1) and (m, N, 1, 1) array
            Of the log rates given z and the data.
        """
        model, out = self.model, np.empty_like(z)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            residual = self._form.residual(z, mean[..., 0])
            precision = np.exp(-2.0 * z[:, :3])
            pull = (precision[:, 2:] * residual) @ model._design.T
            scales_and_coefficients_gradient(model.priors, z, precision, 0.0, self._sizes, pull, out)
            squares = np.einsum("mn,mn->m", residual, residual) + covariance[..., 0, 0].sum(axis=1)
            out[:, 2] += precision[:, 2] * squares - len(model.y)
        return out

    @cached_property
    def _stretched(self) -> np.ndarray | None:
        """`exp(scale * t)` (K, N) for the usual scale, unless out of range."""
        found = np.asarray(np.exp(self.usual[:, 0, 0] * self.t))
        return found if found.all() and np.isfinite(found).all() else None

    def _buffers(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Arrays (K, m, N) and (m, N), the same for each call of a thread: new ones of this size cost as much again."""
        kept = getattr(self._kept, "buffers", None)
        if kept is None or kept.shape[1] != m:
            kept = self._kept.buffers = np.empty((len(self.t) + 1, m, self.model.layout.n_local))
        return kept[:-1], kept[-1]
