"""What takes long and most tests are not about: pictures are drawn coarsely or not, sweeps start no processes, and the
command line is read once."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


class Threads(ThreadPoolExecutor):
    """Threads of this process in place of a loky pool."""

    def __init__(self, n_workers: int, n_threads: int = 1) -> None:
        super().__init__(n_workers)

    def shutdown(self, wait: bool = True, *, kill_workers: bool = False, **others: Any) -> None:
        super().shutdown(wait)


def leave_out_processes(patch: pytest.MonkeyPatch) -> None:
    """The cells of a sweep run in threads; `test_sweep_processes.py` has them in processes."""
    patch.setattr("pyturingvi.sweeps.pools.local_pool", Threads)


def draw_coarsely() -> None:
    """PNG files are drawn in a third of the time: once, with few dots, and where Matplotlib puts things by itself.

    `redraw.py`, which the slow tests run, draws the experiments' as they are.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    whole = Figure.savefig

    def coarse(self: Figure, target: Any, **options: Any) -> None:
        if options.get("format") != "png":
            return whole(self, target, **options)
        before, engine = self.dpi, self.get_layout_engine()
        self.set_layout_engine("none")
        self.set_dpi(20)
        canvas = FigureCanvasAgg(self)
        canvas.draw()
        Image.fromarray(np.asarray(canvas.buffer_rgba())).save(target, format="png")
        self.set_dpi(before)
        return self.set_layout_engine(engine)

    Figure.savefig = coarse  # type: ignore[method-assign]


def build_commands_once() -> None:
    """The command line is called a hundred times in one process, and Typer would read all its options each time."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


def leave_out_drawing(patch: pytest.MonkeyPatch) -> None:
    """Figures are made, but their files hold the first bytes of a PNG alone."""
    patch.setattr("matplotlib.figure.Figure.savefig", lambda self, target, **options: target.write(b"\x89PNG"))
