"""`python -m pyturingvi`: the command line."""

from pyturingvi.cli import main

main()
