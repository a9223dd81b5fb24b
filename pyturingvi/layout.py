"""Who is global and who is local in the flat vector `[z, y_1, ..., y_N]`."""

from __future__ import annotations

from dataclasses import dataclass

from pyturingvi.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Order of the flat unconstrained vector: the globals `z`, then each local block `y_n` contiguously.

    Parameters
    ----------
    n_global : int
        Length `d_z` of the global variable; may be 0.
    n_local : int
        Number `N` of local blocks; may be 0.
    local_dim : int
        Length `d_y` of each local block; 0 only together with `n_local=0`.

    Raises
    ------
    InputError
        If a count is negative or not an integer, or if the vector would be empty.
    """

    n_global: int
    n_local: int
    local_dim: int

    def __post_init__(self) -> None:
        for name in ("n_global", "n_local", "local_dim"):
            value = getattr(self, name)
            try:
                whole = int(value)
            except (TypeError, ValueError, OverflowError):
                raise InputError(f"Layout: {name} must be a whole number, got {value!r}.") from None
            if isinstance(value, bool) or whole != value or whole < 0:
                raise InputError(f"Layout: {name} must be a whole number of at least 0, got {value!r}.")
            object.__setattr__(self, name, whole)
        if (self.n_local == 0) != (self.local_dim == 0):
            raise InputError(
                "Layout: n_local and local_dim must both be positive or both be 0, "
                f"got n_local={self.n_local}, local_dim={self.local_dim}."
            )
        if self.dim == 0:
            raise InputError("Layout: there must be at least one variable, global or local.")

    @property
    def dim(self) -> int:
        """Length `d = d_z + N*d_y` of the flat vector."""
        return self.n_global + self.n_local * self.local_dim

    @property
    def n_local_total(self) -> int:
        """Number of local coordinates, `N*d_y`."""
        return self.n_local * self.local_dim

    def block_slice(self, n: int) -> slice:
        """Where `y_n` stands (n counted from 0)."""
        if not 0 <= n < self.n_local:
            raise InputError(f"Layout: there is no local block {n}; there are {self.n_local}.")
        start = self.n_global + n * self.local_dim
        return slice(start, start + self.local_dim)
