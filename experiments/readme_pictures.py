"""Remake the README's two pictures: the three scale patterns, and the ELBO of the first fit."""

from __future__ import annotations

from pathlib import Path

import pyturingvi as tv
from pyturingvi.plots import plot_scale_patterns, save_elbo_plot

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main() -> None:
    plot_scale_patterns().savefig(IMAGES / "families.png", dpi=110)
    model = tv.load_problem("rpoisson-small")
    save_elbo_plot(tv.fit(model, "structured", tv.Adam(1e-3), n_iterations=20_000), IMAGES / "first_fit.png")


if __name__ == "__main__":
    main()
