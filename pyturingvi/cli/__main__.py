"""`python -m pyturingvi.cli`: the command line."""

from pyturingvi.cli import main

main()
