"""How good a fit is: importance weights, the locals integrated out, what is still to be gained, and a verdict."""
