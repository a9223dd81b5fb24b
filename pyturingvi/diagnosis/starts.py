"""Several starts of one fit: which ends highest, and whether they end at the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_EQUAL = 2.0  # nats between ELBOs that do not tell which fit is right, beside six standard errors
_APART = 2.0  # standard deviations of a global between fits that say different things


@dataclass(frozen=True)
class Starts:
    """The starts of a fit, the one that was kept first.

    Attributes
    ----------
    names : list of str
        "usual" is the start of every fit.
    elbos : list of float
    distance : float
        Largest distance between the means of a global, in its standard deviations in the fit that was kept, over the
        starts whose ELBO is as high as far as can be told.
    where : str
        That global.
    """

    names: list[str]
    elbos: list[float]
    distance: float = 0.0
    where: str = ""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Starts:
        """From its fields as a file has them; what another version told besides is left out."""
        return cls(**{one.name: state[one.name] for one in fields(cls) if one.name in state})

    @property
    def disagree(self) -> bool:
        """Whether starts that fit equally well end at different places."""
        return self.distance > _APART

    def beside(self, fit: Fit, refined: Fit) -> Starts:
        """The same, with the distance in the standard deviations of the fit refined."""
        if not self.where:
            return self
        k = list(fit.model.global_labels).index(self.where)
        return replace(self, distance=float(self.distance * fit.global_sds[k] / refined.global_sds[k]))

    @property
    def words(self) -> str:
        """How they ended, in a sentence or two."""
        ends = [f"{elbo:.1f} ({name})" for name, elbo in zip(self.names, self.elbos, strict=True)]
        words = f"Fits from {len(ends)} starts end at ELBOs of {', '.join(ends)}, of which the first is kept"
        if not self.disagree:
            return f"{words}."
        return (
            f"{words}. These ELBOs do not tell which is right, and they differ by {self.distance:.1f} of its "
            f"standard deviations in {self.where}: the posterior is wider there than the fit says, or has more than "
            "one mode."
        )


def as_good(kept: Fit, other: Fit) -> bool:
    """Whether the ELBO does not tell which of two fits is right."""
    (first, error), (second, other_error) = (fit.elbo.iloc[-1][["elbo", "std_error"]] for fit in (kept, other))
    return bool(first - second < _EQUAL + 6 * np.hypot(error, other_error))


def compare_starts(fits: Sequence[tuple[str, Fit]]) -> Starts:
    """What to say of fits of one model and family from several starts; the first one is kept."""
    names, found = [name for name, _ in fits], [fit for _, fit in fits]
    elbos = [float(fit.elbo.iloc[-1]["elbo"]) for fit in found]
    kept, n_global = found[0], found[0].model.layout.n_global
    equal = [fit.location[:n_global] for fit in found if as_good(kept, fit)]
    if len(equal) < 2 or not n_global:
        return Starts(names, elbos)
    apart = np.ptp(equal, axis=0) / kept.global_sds
    worst = int(np.argmax(apart))
    return Starts(names, elbos, float(apart[worst]), kept.model.global_labels[worst])
