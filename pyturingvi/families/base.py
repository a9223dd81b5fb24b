"""What a variational family is to an engine: draws, their exact pullback, an entropy and a density.

A family is a frozen description; `bind` fixes layout, dtype and array module and gives the operations. They act on a
*working vector*, which holds the same numbers as the flat parameter vector of files in an order that suits the family;
`to_flat` and `from_flat` convert. An elementwise optimizer never sees the difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families.base_distributions import BaseDistribution, Gaussian
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array, to_numpy
from pyturingvi.support.registry import Named, Registry, describe

if TYPE_CHECKING:
    from scipy.sparse import csc_array

    from pyturingvi.families.markov_scale import MarkovScale
    from pyturingvi.families.natural import NaturalCoordinates


class Family(Named, ABC):
    """A variational family.

    One of your own gives `n_params` and `bind`, and a `BoundFamily` for the latter to return; `name` is what outputs
    call it. `LocationScale` is the base of the families `T(u) = C u + m`.
    """

    registry: ClassVar[Registry[Family]] = Registry("family")
    independent: ClassVar[bool] = False  # whether all coordinates are, so that blocks of the scale are single ones

    @property
    def base_distribution(self) -> BaseDistribution:
        """Distribution of each coordinate of the noise."""
        return Gaussian()

    @property
    def label(self) -> str:
        """What outputs and messages call it: its name, and what of its settings makes another family of it."""
        return self.name

    @property
    def julia_devices(self) -> frozenset[str]:
        """Where its Julia counterpart runs; the NumPy engine runs it wherever it runs the model."""
        return frozenset({"cpu", "cuda"})

    @abstractmethod
    def n_params(self, layout: Layout) -> int:
        """Number of parameters p (paper, table 1)."""

    def effective_dimension(self, layout: Layout) -> int:
        """Noise coordinates that one coordinate of a point rests on at most (paper, section 3.2).

        The draws of a natural-gradient update and its rate go by it.
        """
        return layout.n_global + layout.local_dim

    def dense_columns(self, layout: Layout) -> int:
        """Leading noise coordinates that all the others share, which frames of draws make orthogonal."""
        return layout.n_global

    def mirrors_locals(self, layout: Layout) -> bool:
        """Whether a draw of a natural-gradient update has a second one, with the signs of the locals' noise turned."""
        return False

    @property
    def standard_form(self) -> Family:
        """The family in the form that natural gradients step in, where it has several."""
        return self

    def stages_before(self, layout: Layout) -> list[Family]:
        """Families that a run by natural gradients goes through first, each from where the former one ended.

        What a class inherits does not count, since it may lack the members of its parent: a run is then in it alone.
        """
        return []

    def dense_work(self, layout: Layout) -> int:
        """Numbers that a natural-gradient update holds for a while beside parameters and draws."""
        return 0

    def memory_advice(self, layout: Layout) -> str:
        """What to do where a fit is too large for the memory, in words."""
        return f"dtype='float32' halves it, and family='mean-field' has {2 * layout.dim:,} parameters"

    @abstractmethod
    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundFamily:
        """The family's operations for one layout, precision and array module."""

    def config(self) -> dict[str, Any]:
        """JSON-able description; `family_from_config` reads it."""
        return {"family": self.name, **self.registry.tag(self), **describe(vars(self))}

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> Family:
        """The family that `config` described, from all but its name."""
        return cls(**options)


class BoundFamily(ABC):
    """A family fixed to a layout, a dtype and an array module.

    Attributes
    ----------
    noise_dim : int
        Length D of the noise vector behind one point; d unless the family says otherwise.
    n_params : int
        Number of parameters p.
    base : BaseDistribution
        Distribution of each coordinate of the noise.
    """

    def __init__(self, family: Family, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        self.family = family
        self.layout = layout
        self.dtype = np.dtype(dtype)
        self.xp = xp
        self.base = family.base_distribution
        self.n_params = family.n_params(layout)
        self.noise_dim = layout.dim

    # ---- points and gradients -----------------------------------------------------------------------------
    @abstractmethod
    def transform(self, work: Array, noise: Array, out: Array) -> None:
        """Write the point of each row of `noise` (M, D) into `out` (M, d)."""

    @abstractmethod
    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        """Write the parameter gradient into `out` (p,), summed over the M rows.

        Parameters
        ----------
        gradient : (M, d) array
            Derivative of the objective at each of `points`, already divided by M where a mean is wanted.
            May be overwritten.
        """

    # ---- entropy and density ------------------------------------------------------------------------------
    @abstractmethod
    def entropy(self, work: Array) -> float:
        """Entropy of the distribution, in nats."""

    @abstractmethod
    def subtract_entropy_gradient(self, work: Array, out: Array) -> bool:
        """Subtract the gradient of the entropy from `out` (p,); False if it is not finite."""

    @abstractmethod
    def log_q(self, work: Array, points: Array) -> Array:
        """Log density (M,) of the distribution at `points` (M, d)."""

    def standardize(self, work: Array, points: Array) -> Array:
        """The noise (M, D) that `transform` would send to `points`, where there is just one."""
        return self._refuse("gives no standardized points")

    def natural_coordinates(self) -> NaturalCoordinates:
        """Where natural-gradient steps are made."""
        return self._refuse("has no natural-gradient steps; pass an optimizer, such as optimizer=tv.Adam(1e-3)")

    def prox_entropy(self, work: Array, stepsize: float) -> None:
        """Replace `work` by the minimizer over v of `-stepsize H(v) + ||v - work||^2 / 2` (paper, section 2.4)."""
        self._refuse("has no proximal operator of its entropy; use an optimizer without one")

    def project_scale(self, work: Array, min_scale: float) -> None:
        """Move `work` to the nearest parameters whose scale is at least `min_scale`."""
        self._refuse("has no projection; use an optimizer without one")

    # ---- parameters ---------------------------------------------------------------------------------------
    @abstractmethod
    def initial_flat(self, location: np.ndarray, scale: Any) -> np.ndarray:
        """Flat parameters of a start at `location` (d,) with `scale` for the standard deviations, one or (d,)."""

    def embed(self, other: BoundFamily, flat: np.ndarray) -> np.ndarray:
        """Flat parameters of this family for the distribution that `flat` is in another one.

        Raises
        ------
        InputError
            If this family has no such member.
        """
        if type(other.family) is type(self.family) and other.family.config() == self.family.config():
            return flat.copy()
        raise self._cannot_go_on(f"It is of the {other.family.label} family.")

    def _cannot_go_on(self, why: str) -> InputError:
        return InputError(
            f"init: the {self.family.label} family cannot go on from the given fit. {why} Go on with the fit's own "
            "family, or start from its mean: init_location=fit.location in place of init."
        )

    def check_flat(self, flat: np.ndarray) -> None:
        """Raise an InputError unless the flat parameters (p,) are a start with a finite entropy."""
        if not np.isfinite(self.entropy(self.from_flat(flat))):
            raise InputError("init: the entropy of the given distribution is not finite.")

    def to_flat(self, work: Array) -> Array:
        """Copy a working vector into the order that files have."""
        return work.copy()

    def from_flat(self, flat: Array) -> Array:
        """Copy a flat vector into working order."""
        return self.xp.array(flat, dtype=self.dtype)

    def flat_on_host(self, work: Array) -> np.ndarray:
        """Flat float64 parameters in host memory, from a working vector anywhere."""
        return to_numpy(self.to_flat(work)).astype(np.float64, copy=False)

    # ---- what a fit tells of it, on the CPU ---------------------------------------------------------------
    def location(self, flat: np.ndarray) -> np.ndarray:
        """Mean (d,) of the distribution; by default the point of noise 0."""
        out = np.empty((1, self.layout.dim), dtype=self.dtype)
        self.transform(self.from_flat(flat), np.zeros((1, self.noise_dim), dtype=self.dtype), out)
        return np.asarray(out[0])

    def scale(self, flat: np.ndarray) -> csc_array | MarkovScale:
        """The scale matrix C (d, d) of the distribution, as a scipy.sparse.csc_array or an operator."""
        return self._refuse("has no scale matrix")

    def local_parts(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The globals' columns of C, (d, d_z), and each local's covariance given the globals, (N, d_y, d_y)."""
        layout, matrix = self.layout, cast("csc_array", self.scale(flat))
        d_z, d_y, n = layout.n_global, layout.local_dim, layout.n_local
        covariance = np.empty((n, d_y, d_y))
        rows = [matrix[d_z + i :: d_y, d_z:].tocsr() for i in range(d_y)]  # row i of every local
        for i in range(d_y):
            for j in range(i + 1):
                covariance[:, i, j] = covariance[:, j, i] = rows[i].multiply(rows[j]).sum(axis=1)
        return matrix[:, :d_z].toarray(), covariance

    def draw_globals(self, flat: np.ndarray, generator: np.random.Generator, n: int) -> np.ndarray:
        """Draws (n, d_z) of the globals; by default whole points are drawn for them."""
        noise = np.empty((n, self.noise_dim), dtype=self.dtype)
        self.base.fill(generator, noise)
        points = np.empty((n, self.layout.dim), dtype=self.dtype)
        self.transform(self.from_flat(flat), noise, points)
        return points[:, : self.layout.n_global]

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"The {self.family.label} family {what}.")
