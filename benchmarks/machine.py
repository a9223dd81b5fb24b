"""What the figures were measured on, and what a process used of it."""

from __future__ import annotations

import datetime
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd

from pyturingvi.comparisons.result import markdown_table
from pyturingvi.comparisons.timing import busy_others


def settings() -> dict[str, str]:
    """Versions, processor and date, for a CSV's last columns."""
    found = {}
    for name in ("pyturingvi", "numpy", "scipy", "numpyro", "jax", "blackjax", "pymc"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = lines[0].split(":")[1].strip() if lines else platform.processor()
    found |= {"python": platform.python_version(), "cpu": cpu, "machine_cores": str(os.cpu_count())}
    return {**found, "date": str(datetime.date.today())}


def markdown(frame: pd.DataFrame, columns: list[str]) -> str:
    """A table of the columns that the frame has, numbers to three digits."""
    names = [c for c in columns if c in frame]
    shown = [
        [v if isinstance(v, str) else "" if pd.isna(v) else f"{v:.3g}" for v in row] for row in frame[names].values
    ]
    return markdown_table(names, shown)


class Peak:
    """Growth of this process's largest resident size from now on, MiB; earlier peaks (imports, data) are forgotten."""

    def __init__(self) -> None:
        self.earlier = _status("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")
        self.baseline = _status("VmRSS")

    def growth(self) -> float:
        """Peak since the start minus the size at the start."""
        return _status("VmHWM") - self.baseline

    def whole(self) -> float:
        """Peak of the process since it began, interpreter, libraries and data included."""
        return max(self.earlier, _status("VmHWM"))


def wait_until_quiet(limit: float) -> None:
    """Wait, at most `limit` seconds, for half a second in which others use less than a quarter of a core."""
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        others = busy_others()
        time.sleep(0.5)
        if others() <= 0.25:
            return


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024
