# What a variational family is to the engine.

"""
    Family

A location-scale family `T(u) = C u + m`. All families have one shape of C: `n_dense` leading columns, each dense from
the diagonal down, and after them lower triangular blocks along the diagonal (`scale_shape`).
"""
abstract type Family end
