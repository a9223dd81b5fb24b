"""`tv.sweep`: the grid, the folder, one cell in a worker, the workers, and the result."""
