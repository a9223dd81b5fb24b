"""Ctrl-C as a request: the run ends at its next safe point with everything it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class DeferredInterrupt:
    """While active, the first Ctrl-C sets `requested`; a second one interrupts at once.

    Inside another one it tells that one too, which may have more to end than the run at hand. Outside the main thread
    Python delivers no signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None
        self._active = False

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            # None: a handler that Python did not install, and cannot put back. Ignored: as for a job in the background.
            if self._previous not in (None, signal.SIG_IGN):
                signal.signal(signal.SIGINT, self._handle)
                self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._previous)
            self._active = False
            outer = getattr(self._previous, "__self__", None)
            if isinstance(outer, DeferredInterrupt):
                outer.requested |= self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def request_interrupt() -> None:
    """Tell the `DeferredInterrupt` that is active, if any, what a Ctrl-C tells it; from any thread, however often."""
    active = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    if isinstance(active, DeferredInterrupt):
        active.requested = True


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back, also from processes that are started inside: until they unblock SIGINT."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end for a Ctrl-C that a fit in it answered by what it had, or heard too late."""
    with DeferredInterrupt() as interrupt:
        yield
    if interrupt.requested:
        raise KeyboardInterrupt
