"""`fit.refine()`: the globals stepped on the density with the locals integrated out, and weighted."""
