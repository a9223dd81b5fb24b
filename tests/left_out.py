"""What takes long and most tests are not about: pictures are not drawn, and sweeps start no processes."""

from __future__ import annotations

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


def leave_out_drawing(patch: pytest.MonkeyPatch) -> None:
    """Figures are made, but their files hold the first bytes of a PNG alone."""
    patch.setattr("matplotlib.figure.Figure.savefig", lambda self, target, **options: target.write(b"\x89PNG"))
