"""Loaders for the paper's data sets and simulators of the same shape; each module is imported when used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "load_rwm5yr": "rwm5yr",
    "load_fx_returns": "fx",
    "load_released_returns": "fx",
    "load_critlangacq": "critlangacq",
    "load_verbagg": "verbagg",
    "simulate_irt": "simulate",
    "simulate_rpoisson": "simulate",
    "simulate_volatility": "simulate",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
