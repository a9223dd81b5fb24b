"""The log density of the globals with every local integrated out, by quadrature around the fitted conditionals.

Where the locals are independent given the globals z, the density of z is `p(z) prod_n int p(y_n, x_n | z) dy_n`: N
integrals over d_y variables in place of one over all. The fit says where each of them has its mass: nodes around the
mean of y_n given z, as wide as its spread, and moved to where the mass turns out to be (`nodes`).

The gradient in z is that of the terms, averaged over the nodes by their shares of the integral (Fisher's identity).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyturingvi.diagnosis.chained_locals import ChainedLocals
from pyturingvi.diagnosis.integrals import GridIntegrals, IntegratedDensity
from pyturingvi.diagnosis.local_draws import draw_locals
from pyturingvi.diagnosis.nodes import Moments, Rule, count_of, move_by_moments, move_by_newton
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.support.registry import defines

_ROUNDS = 4


def log_marginal(
    model: Model, parts: GlobalsAndLocals, noise: np.ndarray, seed: int = 0, n_nodes: int | None = None
) -> np.ndarray:
    """Log density of the globals at `z = mean + scale @ noise`, the locals integrated out: (n,) for noise (n, d_z).

    Parameters
    ----------
    model : Model
        One that has `log_terms`.
    parts : GlobalsAndLocals
        Where the nodes are put.
    seed : int
        For the nodes that are draws.
    n_nodes : int, optional
        Nodes along each variable of a local, or number of draws.

    Returns
    -------
    (n,) array
        Normalized as the model is: `log p(z, x)`.
    """
    return integrals_of(model, parts, n_nodes, seed).log_density(parts.mean + noise @ parts.scale.T)


def integrals_of(
    model: Model,
    parts: GlobalsAndLocals,
    size: int | None = None,
    seed: int = 0,
    otherwise: int | None = None,
    *,
    chain: bool = False,
) -> IntegratedDensity:
    """The integrals over the locals: on one grid where the model has such, else around the fit's conditionals.

    Parameters
    ----------
    size : int, optional
        Nodes along each variable of a local, or number of draws.
    seed : int
        Of draws.
    otherwise : int, optional
        The size, where none is given and the model has no grid that knows its own.
    chain : bool
        Whether the locals are not independent of their neighbours given the globals.
    """
    layout = model.layout
    if chain:
        return ChainedLocals(model, parts, size, seed)
    if layout.n_local and layout.local_dim == 1 and defines(model, "_on_grid"):
        own = model._on_grid(parts.local_mean, parts.local_scale[:, 0, 0], size)
        if own is not None:
            return GridIntegrals(own)
    return LocalIntegrals(model, parts, Rule.of(layout.n_local, layout.local_dim, size or otherwise, seed))


@dataclass(frozen=True)
class Integrals:
    """The integrals at some globals.

    Attributes
    ----------
    log_density : (m,) array
    centre : (m, N, d_y) array
    scale : (m, N, d_y, d_y) array
        Where the nodes are: `centre + scale t`; a view with stride 0 where they are the fit's.
    shares : (m, K, N) array
        Each node's share of each integral.
    """

    log_density: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    shares: np.ndarray


class LocalIntegrals(IntegratedDensity):
    """Integrals over the locals of a model at nodes of each local's own, as a function of the globals.

    Parameters
    ----------
    model : Model
        One that has `log_terms`, for gradients `log_terms_and_gradient`.
    parts : GlobalsAndLocals
        Where the nodes are put first.
    rule : Rule
    """

    def __init__(self, model: Model, parts: GlobalsAndLocals, rule: Rule) -> None:
        self.model, self.parts, self.rule = model, parts, rule
        self._own = model._at_nodes(rule.nodes, parts.local_scale) if defines(model, "_at_nodes") else None
        self.size, layout = rule.size, model.layout
        own_bytes = None if self._own is None else self._own.row_bytes
        self.row_bytes = own_bytes or 8 * rule.count * (layout.dim + 4 * layout.n_local)

    def log_density(self, z: np.ndarray) -> np.ndarray:
        if not self.model.layout.n_local:
            return np.asarray(self.model.log_density(z), dtype=np.float64)
        return super().log_density(z)

    def at(self, z: np.ndarray) -> Integrals:
        """The integrals at z (m, d_z), all at once."""
        parts, rule = self.parts, self.rule
        centre = parts.local_means(z)
        scale = np.broadcast_to(parts.local_scale, (len(z), *parts.local_scale.shape))
        total, shares = self.sums(z, centre, scale)
        todo = np.arange(len(z))
        for round_ in range(_ROUNDS):
            moments = Moments.of(shares[todo] if round_ else shares, rule.nodes)
            off = moments.misplaced
            again = off.any(axis=1)
            if not again.any():
                break
            if not round_:
                centre, scale, shares = centre.copy(), scale.copy(), shares.copy()
            todo, off = todo[again], off[again]
            c, s = centre[todo], scale[todo]
            if round_:
                move_by_moments(Moments(moments.mean[again], moments.covariance[again]), off, c, s)
            else:
                move_by_newton(self.model, z[todo], off, c, s)
            centre[todo], scale[todo] = c, s
            total[todo], shares[todo] = self.sums(z[todo], c, s)
        return Integrals(total, centre, scale, shares)

    def count(self, size: int) -> int:
        return count_of(self.model.layout.local_dim, size)

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.moments_of(self.at(z))

    def moments_of(self, found: Integrals) -> tuple[np.ndarray, np.ndarray]:
        """Mean (m, N, d_y) and covariance (m, N, d_y, d_y) of each local from the integrals at some globals."""
        inner, scale = Moments.of(found.shares, self.rule.nodes), found.scale
        times = np.multiply if scale.shape[-1] == 1 else np.matmul  # of many matrices with one entry
        mean = found.centre + times(scale, inner.mean[..., None])[..., 0]
        return mean, times(times(scale, inner.covariance), np.swapaxes(scale, 2, 3))

    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        return draw_locals(self, z, source)

    def with_rule(self, rule: Rule) -> LocalIntegrals:
        """The same integrals at other nodes."""
        return LocalIntegrals(self.model, self.parts, rule)

    def _values(self, z: np.ndarray) -> np.ndarray:
        return self.at(z).log_density

    def _with_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found, d_z, count = self.at(z), z.shape[1], self.rule.count
        if self._own is not None:
            return found.log_density, self._own.slopes(z, *self.moments_of(found))
        points = self._points(z, found.centre, found.scale)
        weights = found.shares.reshape(len(points), -1)
        with np.errstate(all="ignore"):
            slopes = self.model.log_terms_and_gradient(points, weights)[2][:, :d_z].reshape(len(z), count, d_z)
            # each row has the prior's slope, that of weights 0, once more than all together should have it
            points, zeros = np.ascontiguousarray(points[::count]), np.zeros((len(z), weights.shape[1]))
            prior = self.model.log_terms_and_gradient(points, zeros)[2][:, :d_z]
            return found.log_density, slopes.sum(axis=1) - (count - 1) * prior

    def _points(self, z: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """All nodes (m K, d), those of one z together."""
        (m, n_local, d_y), d_z, nodes = centre.shape, z.shape[1], self.rule.nodes
        points = np.empty((m, len(nodes), self.model.dim))
        points[:, :, :d_z] = z[:, None]
        locals_ = points[:, :, d_z:].reshape(m, len(nodes), n_local, d_y)
        for i in range(d_y):
            place = locals_[..., i]
            place[...] = centre[:, None, :, i]
            for j in range(i + 1):
                place += scale[:, None, :, i, j] * nodes[..., j]
        points[:, :, d_z:] = locals_.reshape(m, len(nodes), -1)
        return points.reshape(-1, self.model.dim)

    def _logs(self, z: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Global term (m,), and logs (m, K, N) of what is summed over the nodes; the caller may write to both."""
        if self._own is not None:
            prior, terms = self._own.terms(z, centre, scale)
            terms += self.rule.log_weights
            return prior, terms
        prior, terms = self.model.log_terms(self._points(z, centre, scale))
        return prior[:: self.rule.count], terms.reshape(len(z), self.rule.count, -1) + self.rule.log_weights

    def sums(self, z: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density (m,) at z, and each node's share (m, K, N), with nodes around `centre`, `scale` wide."""
        prior, logs = self._logs(z, centre, scale)
        with np.errstate(invalid="ignore", divide="ignore"):
            largest = np.nan_to_num(logs.max(axis=1), nan=-np.inf, posinf=np.inf, neginf=-1e300)
            logs -= largest[:, None]
            shares = np.exp(logs, out=logs)
            sums = shares.sum(axis=1)
            shares /= sums[:, None]
            widths = np.diagonal(scale if scale.strides[0] else scale[:1], axis1=2, axis2=3)
            determinants = np.log(np.abs(widths)).sum(axis=2)
            total = prior + (np.log(sums) + largest + determinants).sum(axis=1)
        return total, shares
