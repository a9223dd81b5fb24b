"""No-U-Turn samplers on the same model as a fit: the reference posterior.

`draws` holds what they found, `turing` runs Turing's in Julia, and `mici` one on the package's own gradients.
"""
