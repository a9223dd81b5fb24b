"""What a fit is turned into: a summary, a tree for ArviZ, a file."""
