"""What the figures were measured on, and what a process used of it."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd


def settings() -> dict[str, str]:
    """Versions, processor and date, for a CSV's last columns."""
    found = {}
    for name in ("pyturingvi", "numpy", "scipy", "numpyro", "jax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    lines = [ln for ln in _read("/proc/cpuinfo").splitlines() if ln.startswith("model name")]
    cpu = lines[0].split(":")[1].strip() if lines else platform.processor()
    found |= {"python": platform.python_version(), "cpu": cpu, "machine_cores": str(os.cpu_count())}
    return {**found, "date": str(datetime.date.today())}


def markdown(frame: pd.DataFrame, columns: list[str]) -> str:
    """A table of the columns that the frame has, numbers to three digits."""
    shown = [c for c in columns if c in frame]
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    for record in frame[shown].itertuples(index=False):
        cells = [v if isinstance(v, str) else "" if pd.isna(v) else f"{v:.3g}" for v in record]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Peak:
    """Growth of this process's largest resident size from now on, MiB.

    Linux can forget earlier peaks (imports, reading data); elsewhere the growth of `ru_maxrss` counts.
    """

    def __init__(self) -> None:
        self.earlier = _status("VmHWM") or _max_rss()
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self.baseline = _status("VmRSS")
            self.resets = True
        except OSError:
            self.baseline, self.resets = _max_rss(), False

    def growth(self) -> float:
        """Peak since the start minus the size at the start."""
        return self._now() - self.baseline

    def whole(self) -> float:
        """Peak of the process since it began, interpreter, libraries and data included."""
        return max(self.earlier, self._now())

    def _now(self) -> float:
        return _status("VmHWM") if self.resets else _max_rss()


class OtherLoad:
    """Cores that other processes kept busy, on average since the start (Linux; elsewhere NaN)."""

    def __init__(self) -> None:
        self.start = self._read()

    def cores(self) -> float:
        """Average number of busy cores that were not ours."""
        now = self._read()
        wall = now[1] - self.start[1]
        return (now[0] - self.start[0]) / wall if wall else float("nan")

    @staticmethod
    def _read() -> tuple[float, float]:
        text = _read("/proc/stat")
        if not text:
            return float("nan"), 0.0
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = [int(t) for t in text.splitlines()[0].split()[1:9]]
        hertz = os.sysconf("SC_CLK_TCK")
        busy = (sum(ticks) - ticks[3] - ticks[4]) / hertz
        own = os.times()
        return busy - own.user - own.system, sum(ticks) / hertz / (os.cpu_count() or 1)


def wait_until_quiet(limit: float) -> None:
    """Wait, at most `limit` seconds, for half a second in which others use less than a quarter of a core."""
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        load = OtherLoad()
        time.sleep(0.5)
        if not load.cores() > 0.25:
            return


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _status(key: str) -> float:
    line = next((ln for ln in _read("/proc/self/status").splitlines() if ln.startswith(key)), "")
    return int(line.split()[1]) / 1024 if line else 0.0


def _max_rss() -> float:
    unit = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
