"""How much memory a fit needs and how much there is, asked before anything is allocated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, MemoryLimitError
from pyturingvi.families.base import Family
from pyturingvi.layout import Layout


def available_memory(device: str = "cpu") -> int:
    """Free bytes on the machine, or in the control group that holds this process if that is less."""
    if device == "cuda":
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0])
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no control group, or no limit ("max")
            continue
    return max(free, 0)


def fit_bytes(
    family: Family,
    layout: Layout,
    itemsize: int,
    n_slots: int,
    n_samples: int,
    averaging: bool = False,
    checkpoint: bool = False,
    elbo_samples: int = 0,
) -> int:
    """Bytes that one fit takes at its peak.

    Parameters, gradient, optimizer state and the batch of points; in float64 the start and the result, and the copy
    of parameters and state that a checkpoint writes. An ELBO estimate draws its points piece by piece, but keeps the
    log densities of all, which are joined and then compared with their mean.
    """
    p, d = family.n_params(layout), layout.dim
    state = 1 + n_slots + (1 if averaging else 0)
    copies = 1 + (state if checkpoint else 1)
    return itemsize * ((state + 1) * p + 4 * n_samples * d) + 8 * copies * p + _ELBO_BYTES * elbo_samples


def natural_bytes(family: Family, layout: Layout, itemsize: int, n_samples: int, elbo_samples: int) -> int:
    """Bytes that a fit by natural gradients takes at its peak.

    Parameters, best parameters, velocity, direction, step and their changed copies; sums of pieces; the noise of the
    update at hand; and in float64 the start, the result and a checkpoint's vectors.
    """
    p, d = family.n_params(layout), layout.dim
    return itemsize * (10 * p + 4 * n_samples * d + family.dense_work(layout)) + 8 * 5 * p + _ELBO_BYTES * elbo_samples


_ELBO_BYTES = 3 * 8


def check_draws_memory(n: int, dim: int, what: str) -> None:
    """Refuse n draws of `dim` numbers that will not fit in the memory that is free: noise, points and natural values.

    Raises
    ------
    MemoryLimitError
        With the bytes needed and the bytes there are.
    """
    _refuse_beyond_free(3 * 8 * n * dim, f"{what} with n={n:,} at d={dim:,}", "at its peak", "draw fewer at a time")


def _refuse_beyond_free(needed: int, asked: str, when: str, advice: str) -> None:
    """Raise MemoryLimitError for what was asked for if so many bytes are not free."""
    have = available_memory()
    if needed > have:
        raise MemoryLimitError(
            f"{asked} needs {needed:,} bytes ({needed / 2**30:.1f} GiB) {when}; {have:,} bytes "
            f"({have / 2**30:.1f} GiB) are free. Nothing was allocated; {advice}."
        )


def nuts_bytes(dim: int, n_chains: int, n_draws: int) -> int:
    """Bytes of NUTS at its peak: the draws in Julia, a copy on their way, and NumPy's; and a sampler for each chain.

    With a draw go whether it diverged and the depth of its tree. A sampler holds some 16 vectors.
    """
    return n_chains * (n_draws * (3 * 8 * dim + 34) + 16 * 8 * dim + 2048)


def check_nuts_memory(dim: int, n_chains: int, n_draws: int) -> None:
    """Refuse draws that will not fit in the memory that is free.

    Raises
    ------
    MemoryLimitError
        With the bytes needed and the bytes there are.
    """
    asked = f"sample_nuts with n_chains={n_chains:,} and n_draws={n_draws:,} at d={dim}"
    _refuse_beyond_free(nuts_bytes(dim, n_chains, n_draws), asked, "for the draws", "take fewer draws or chains")


def refine_bytes(layout: Layout, n_nodes: int, n_draws: int) -> int:
    """Bytes of refining at its peak: weighted draws, and all nodes of the integrals at one of them with their terms."""
    return 8 * (3 * n_draws * layout.n_global + 4 * n_nodes * (layout.dim + 4 * layout.n_local))


def check_refine_memory(layout: Layout, n_nodes: int, n_draws: int) -> None:
    """Refuse a refinement with n_nodes nodes for each local's integral that will not fit in the memory that is free.

    Raises
    ------
    MemoryLimitError
        With the bytes needed and the bytes there are.
    """
    asked = f"refine with {n_nodes:,} nodes for each of {layout.n_local:,} locals and n_draws={n_draws:,}"
    _refuse_beyond_free(refine_bytes(layout, n_nodes, n_draws), asked, "at its peak", "take fewer draws or nodes")


def check_memory(
    needed: int,
    limit: Any,
    device: str,
    family: Family,
    layout: Layout,
    free: int | None = None,
    elbo_samples: int = 0,
) -> None:
    """Refuse a fit that will not fit; `free` bytes are there, or as many as `available_memory` finds.

    Raises
    ------
    MemoryLimitError
        With the bytes needed and the bytes there are.
    """
    check_limit(limit)
    if limit is None:
        have, source = available_memory(device) if free is None else free, "are free"
    else:
        if limit == math.inf:
            return
        have, source = int(limit), "are allowed by max_memory"
    if needed > have:
        p = family.n_params(layout)
        if _ELBO_BYTES * elbo_samples > needed / 2:
            advice = f"most of it is for elbo_samples={elbo_samples:,}, of which fewer will do"
        else:
            advice = family.memory_advice(layout)
        raise MemoryLimitError(
            f"A {family.name} fit with d={layout.dim} has {p:,} parameters and needs {needed:,} bytes "
            f"({needed / 2**30:.1f} GiB) for parameters, gradient, optimizer state and draws; {have:,} bytes "
            f"({have / 2**30:.1f} GiB) {source}. Nothing was allocated; {advice}."
        )


def check_limit(limit: Any) -> None:
    """Raise an InputError unless it is None or a number of bytes above 0."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.integer) or not limit > 0:
        raise InputError(f"max_memory must be a number of bytes above 0, got {limit!r}.")
