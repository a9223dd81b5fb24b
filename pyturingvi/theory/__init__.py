"""The paper's bounds as numbers, beside what can be measured (paper, section 3 and its appendix)."""

from pyturingvi.theory.complexity import Complexity, fixed_stepsize_complexity
from pyturingvi.theory.convexity import (
    counterexample,
    counterexample_determinant,
    counterexample_elbo_hessian,
    counterexample_hessian,
    energy_hessian,
)
from pyturingvi.theory.dimension import (
    coordinates_used,
    effective_dimension,
    effective_dimensions,
    global_and_own,
    global_own_and_previous,
)
from pyturingvi.theory.targets import Components, QuadraticTarget, isotropic_target
from pyturingvi.theory.variance import (
    Measured,
    exact_gradient_variance,
    gradient_variance_bound,
    measured_gradient_variance,
)

__all__ = [
    "Complexity",
    "Components",
    "Measured",
    "QuadraticTarget",
    "coordinates_used",
    "counterexample",
    "counterexample_determinant",
    "counterexample_elbo_hessian",
    "counterexample_hessian",
    "effective_dimension",
    "effective_dimensions",
    "energy_hessian",
    "exact_gradient_variance",
    "fixed_stepsize_complexity",
    "global_and_own",
    "global_own_and_previous",
    "gradient_variance_bound",
    "isotropic_target",
    "measured_gradient_variance",
]
