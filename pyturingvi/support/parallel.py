"""A few threads for NumPy work that releases the interpreter lock; results do not depend on their number."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ignore_overflow() -> None:
    """A thread does not inherit np.errstate; a diverging run must be as silent here as in the main thread."""
    np.seterr(all="ignore")


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS works in one thread: products too small for its threads, which would wait for ours."""
    limited: AbstractContextManager[Any] = _blas(len(sys.modules)).limit(limits=1, user_api="blas")
    return limited


@functools.lru_cache(maxsize=1)
def _blas(n_modules: int) -> Any:
    """The BLAS libraries, looked for anew (some milliseconds) only after an import, which may have loaded one."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class Workers:
    """`n` threads for pieces of work, and one more that draws noise ahead (none of them when n is 1)."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._pool = ThreadPoolExecutor(n, "pyturingvi", _ignore_overflow) if n > 1 else None
        self._ahead = ThreadPoolExecutor(1, "pyturingvi-noise", _ignore_overflow) if n > 1 else None

    def map(self, function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """Results of `function` over `items`, in order."""
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def ahead(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Start `function` in the background; with one thread it runs at once."""
        if self._ahead is not None:
            return self._ahead.submit(function, *arguments)
        done: Future[T] = Future()
        done.set_result(function(*arguments))
        return done

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._pool, self._ahead):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
