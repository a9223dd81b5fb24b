"""From unconstrained numbers to constrained values, each with its log-Jacobian and the pullback of gradients.

`tv.models.LogDensity(fn, layout, constrain={"tau": tv.transforms.Positive(), ...})` takes these. A class of your own
derives from `Transform`; `@tv.register` above it lets files hold models that use it.
"""

from pyturingvi.transforms.base import Transform
from pyturingvi.transforms.bounds import Interval, LowerBounded, Positive, Real, UpperBounded
from pyturingvi.transforms.maps import lkj_log_normalizer
from pyturingvi.transforms.vectors import CholeskyCorrelation, Ordered, Simplex

__all__ = [
    "CholeskyCorrelation",
    "Interval",
    "LowerBounded",
    "Ordered",
    "Positive",
    "Real",
    "Simplex",
    "Transform",
    "UpperBounded",
    "lkj_log_normalizer",
]

for _class in (CholeskyCorrelation, Interval, LowerBounded, Ordered, Positive, Real, Simplex, UpperBounded):
    Transform.registry.add(_class)
