# What a prior of a standard deviation is to a model, which sees it from v = log s.

"""
    ScalePrior

`log_density_of(prior, v)` gives the normalized log density of v = log s, the log-Jacobian included, and `slope_of(prior, v)`
its derivative.
"""
abstract type ScalePrior end
