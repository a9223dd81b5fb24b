"""What goes on around a run, whichever engine runs it: progress, ELBO trace, callback, interrupts, checkpoints."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, OutputError
from pyturingvi.support.archive import damaged, read_archive, write_archive
from pyturingvi.support.interrupts import DeferredInterrupt
from pyturingvi.support.progress_bar import progress_bar

_CHECKPOINT = "checkpoint"


@dataclass
class Snapshot:
    """State after `iteration` updates from which the run goes on exactly; vectors in flat order."""

    iteration: int
    vectors: dict[str, np.ndarray]
    scalars: dict[str, float] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run hands back: flat parameters, updates made, how it ended and why, and whether at `StopWithin`.

    gain: rise of the ELBO over the last part of a run that has converged, and its standard error.
    astray: whether a run that used its updates up was not on its way, so that to choose their number excuses nothing.
    """

    params: np.ndarray
    n_updates: int
    status: str
    message: str
    arrived: bool = False
    gain: tuple[float, float] | None = None
    astray: bool = False


class RunMonitor:
    """Keeps the ELBO rows and decides whether a run goes on.

    Parameters
    ----------
    description : mapping
        All that determines the fit's numbers, as `FitSpec.to_json` gives it; a checkpoint must have the same.
    callback : callable or None
        Called with `(iteration, elbo)` at each ELBO estimate; a true answer stops the run.
    checkpoint : Path or None
        File that receives a `Snapshot` every `checkpoint_seconds` and at the end.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        progress: bool = False,
        callback: Callable[[int, float], Any] | None = None,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        self.description = dict(description)
        self.n_iterations: int | None = description["n_iterations"]
        self.elbo_every: int | None = description["elbo_every"]
        self.rows: list[tuple[int, float, float, float]] = []
        self.interrupt = DeferredInterrupt()
        self.stopped_by_callback = False
        self.partial: Outcome | None = None  # what a run had when an exception ended it
        self._progress = progress and sys.stderr is not None  # a service may have no standard error
        self._callback = callback
        self._checkpoint = checkpoint
        self._checkpoint_seconds = checkpoint_seconds
        self._bar: Any = None
        self._shown = 0
        self._earlier_seconds = 0.0
        self._start = self._last_tick = self._last_checkpoint = time.perf_counter()

    # ---- life of a run ------------------------------------------------------------------------------------
    def __enter__(self) -> RunMonitor:
        self._start = self._last_tick = self._last_checkpoint = time.perf_counter()
        self.interrupt.__enter__()
        if self._progress:
            words = f"{self.description['model']} {self.description['family']['family']}"
            self._bar = progress_bar(words, "it", True, total=self.n_iterations, initial=self._shown)
            if self.rows:
                self._bar.set_postfix_str(f"ELBO {self.rows[-1][1]:.6g}", refresh=False)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.interrupt.__exit__(*exception)
        if self._bar is not None:
            self._bar.close()

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier parts of a resumed one included."""
        return self._earlier_seconds + time.perf_counter() - self._start

    @property
    def stop_requested(self) -> bool:
        """True once Ctrl-C was pressed or the callback asked to stop."""
        return self.interrupt.requested or self.stopped_by_callback

    def record(self, iteration: int, elbo: float, std_error: float) -> None:
        """Add a row to the ELBO trace and ask the callback."""
        self.rows.append((iteration, elbo, std_error, self.seconds))
        if self._bar is not None:
            self._bar.set_postfix_str(f"ELBO {elbo:.6g}", refresh=False)
        if self._callback is None:
            return
        try:
            self.stopped_by_callback |= bool(self._callback(iteration, elbo))
        except KeyboardInterrupt:  # as a Ctrl-C: a notebook's stop button arrives like this too
            if self.interrupt.requested:  # a second one
                raise
            self.interrupt.requested, self._callback = True, None  # it would raise again at the last estimate

    def tick(self, iteration: int, snapshot: Callable[[], Snapshot], words: str = "") -> None:
        """Tell that `iteration` updates are made; shows progress and writes a checkpoint when one is due.

        Parameters
        ----------
        words : str
            What the run is doing, for the bar of a run whose end is not known.
        """
        now = time.perf_counter()
        if now - self._last_tick < 0.1 and iteration != self.n_iterations:
            return
        self._last_tick = now
        if self._bar is not None:
            if words:
                elbo = f", ELBO {self.rows[-1][1]:.6g}" if self.rows else ""
                self._bar.set_postfix_str(words + elbo, refresh=False)
            self._bar.update(iteration - self._shown)
            self._shown = iteration
        if self._checkpoint is not None and now - self._last_checkpoint >= self._checkpoint_seconds:
            self.save(snapshot)

    # ---- checkpoints --------------------------------------------------------------------------------------
    def save(self, take_snapshot: Callable[[], Snapshot]) -> None:
        """Write the checkpoint file, if there is one; where that fails, warn and go on."""
        if self._checkpoint is None:
            return
        snapshot = take_snapshot()
        rows = np.array(self.rows, dtype=np.float64).reshape(-1, 4)
        try:
            header = {
                "kind": _CHECKPOINT,
                "spec": self.description,
                "iteration": snapshot.iteration,
                "scalars": {name: float(value) for name, value in snapshot.scalars.items()},
                "seconds": self.seconds,
            }
            write_archive(self._checkpoint, header, {"rows": rows, **snapshot.vectors})
        except (OSError, TypeError, ValueError) as error:  # a full disk, or an odd scalar, must not cost the run
            warnings.warn(
                f"checkpoint: cannot write {str(self._checkpoint)!r}: {getattr(error, 'strerror', None) or error}. "
                "The run goes on without it.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._last_checkpoint = time.perf_counter()

    def damaged_checkpoint(self, why: object) -> OutputError:
        """The error for a checkpoint that holds no state of this run."""
        assert self._checkpoint is not None
        return damaged(self._checkpoint, "checkpoint", why)

    def foreign_checkpoint(self) -> InputError:
        """The error for a checkpoint of a version that draws and decides otherwise."""
        return InputError(
            f"checkpoint: {str(self._checkpoint)!r} was begun by another version of pyturingvi, whose updates are not "
            "those of this one. Give another path to start anew, or go on with the version that wrote it."
        )

    def resume(self, names: Sequence[str], others: Sequence[str] = (), all_rows: bool = False) -> Snapshot | None:
        """The state in the checkpoint file, with vectors of these names, or None where there is no file yet.

        Those of `names` have one length; `others` may have any. `all_rows` keeps the whole trace: it need not lie at
        multiples of `elbo_every`.

        Raises
        ------
        InputError
            If the file belongs to a fit with other settings; the message names them.
        """
        if self._checkpoint is None or not self._checkpoint.exists() or self._checkpoint.stat().st_size == 0:
            return None
        header, arrays = read_archive(
            self._checkpoint, _CHECKPOINT, "checkpoint", ["spec", "iteration", "seconds"], ["rows"]
        )
        then, now = header["spec"], self.description
        if not isinstance(then, dict) or not isinstance(header["iteration"], int):
            raise damaged(self._checkpoint, "checkpoint", "its header has values of a wrong kind")
        free = {"n_iterations"} if now.get("noise") is None else set()
        # a setting that the writer did not know yet had its default there, which is None
        different = [key for key in {**now, **then} if then.get(key) != now.get(key) and key not in free]
        if different:
            listed = "; ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in different)
            raise InputError(
                f"checkpoint: {str(self._checkpoint)!r} belongs to another fit ({listed}). "
                "Use the same settings to go on with it, or another path to start anew."
            )
        if self.n_iterations is not None and header["iteration"] > self.n_iterations:
            raise InputError(
                f"checkpoint: {str(self._checkpoint)!r} already holds {header['iteration']} updates, more than "
                f"n_iterations={self.n_iterations}."
            )
        rows = arrays.pop("rows")
        for name in [*names, *others]:
            if name not in arrays:
                raise damaged(self._checkpoint, "checkpoint", f"it has no {name!r}")
        for name in arrays:
            if name not in names and name not in others:
                raise InputError(f"checkpoint: {str(self._checkpoint)!r} has a vector {name!r} of another run.")
        try:
            # the rows an uninterrupted run would have by now: the last one may come from a cut-short estimate
            every, last = self.elbo_every, int(header["iteration"])
            kept = [row for row in rows if all_rows or (row[0] < last and row[0] % (every or 1) == 0)]
            found = [(int(i), float(e), float(s), float(t)) for i, e, s, t in kept]
            scalars = {name: float(value) for name, value in header.get("scalars", {}).items()}
            seconds, size = float(header["seconds"]), arrays["params"].size
            if last < 0 or any(
                vector.shape != ((size,) if name in names else (vector.size,)) or vector.dtype != np.float64
                for name, vector in arrays.items()
            ):
                raise ValueError("its vectors are no vectors of one length")
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise damaged(self._checkpoint, "checkpoint", error) from None
        self.rows, self._earlier_seconds, self._shown = found, seconds, last
        return Snapshot(last, arrays, scalars)
