"""Remake the README's two pictures: the three scale patterns, and the ELBO of the first fit.

python experiments/readme_pictures.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.plots import plot_scale_patterns, save_elbo_plot
from pyturingvi.support.files import write_picture

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_picture(plot_scale_patterns(), IMAGES / "families.png", dpi=110)
    model = tv.load_problem("rpoisson-small")
    save_elbo_plot(tv.fit(model), IMAGES / "first_fit.png")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
