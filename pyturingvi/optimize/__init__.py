"""Optimization: update rules and their operators, schedules, averaging, noise, and the loop."""

from pyturingvi.optimize.objective import Batch
from pyturingvi.optimize.operators import Operator, ProximalEntropy, ScaleProjection
from pyturingvi.optimize.rules import ElementwiseRule, Rule, RuleState

__all__ = ["Batch", "ElementwiseRule", "Operator", "ProximalEntropy", "Rule", "RuleState", "ScaleProjection"]
