"""A local worker ends when the process that started it has, once its cell is saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyturingvi.support.interrupts import request_interrupt

_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 10.0  # for a cell to save its checkpoint when the parent is gone


class ParentWatcher:
    """A thread of a local worker, which interrupts the cell at work when the sweep stops, and ends an orphan.

    An engine notices an interrupt within about 0.1 s, long before the next ELBO estimate, and saves its checkpoint.
    """

    def __init__(self) -> None:
        self._goes_on: Callable[[], bool] | None = None
        self._started = False

    def start(self, parent: int) -> None:
        """Called once in each process that a pool starts, in its main thread."""
        self._started = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the parent too, which decides what ends
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=self._watch, args=(parent,), daemon=True).start()

    @contextmanager
    def cell_at_work(self, goes_on: Callable[[], bool]) -> Iterator[None]:
        """While a cell runs, which Ctrl-C ends as it ends any fit; `goes_on` tells whether its sweep does."""
        self._goes_on = goes_on
        if self._started:
            signal.signal(signal.SIGINT, lambda number, frame: None)  # not ignored: a fit puts its own handler there
        try:
            yield
        finally:
            self._goes_on = None
            if self._started:
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _watch(self, parent: int) -> None:
        import psutil

        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(parent)
            while os.getppid() == parent and process.is_running():
                goes_on = self._goes_on
                if goes_on is not None and not goes_on():
                    request_interrupt()
                time.sleep(_LOOK_SECONDS)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._goes_on is not None and time.monotonic() < deadline:
            request_interrupt()
            time.sleep(0.05)
        os._exit(1)


parent_watcher = ParentWatcher()


def start_local_worker(parent: int) -> None:
    """The initializer of a local pool."""
    parent_watcher.start(parent)
