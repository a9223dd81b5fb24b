"""What a fit is turned into: draws and predictions, a summary, a tree for ArviZ, what it shows, a file."""
