"""Priors of standard deviations: what the bundled models take as `priors=`.

Where groups are few, the prior of their standard deviation matters (Gelman, 2006, "Prior distributions for variance
parameters in hierarchical models"). A class of your own derives from `ScalePrior`; `@tv.register` above it lets files
hold models that use it.
"""

from pyturingvi.priors.base import ScalePrior
from pyturingvi.priors.half import HalfCauchy, HalfNormal, HalfStudentT

__all__ = ["HalfCauchy", "HalfNormal", "HalfStudentT", "ScalePrior"]

for _class in (HalfCauchy, HalfNormal, HalfStudentT):
    ScalePrior.registry.add(_class)
