"""Arrays as a tree that ArviZ reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyturingvi.errors import DataError


def arviz_tree(
    groups: dict[str, dict[str, np.ndarray]],
    dims: Mapping[str, list[str]],
    coords: Mapping[str, list[Any]],
    posterior_attrs: dict[str, Any],
) -> Any:
    """An ArviZ DataTree of arrays (chain, draw, ...), with names of the axes behind and their labels.

    Raises
    ------
    DataError
        Without arviz-base.
    """
    try:
        from arviz_base import from_dict
    except ImportError:
        raise DataError("to_arviz needs arviz-base: pip install 'pyturingvi[arviz]'.") from None
    named = {name: axes for name, axes in dims.items() if axes}
    return from_dict(groups, dims=named, coords=dict(coords), attrs={"posterior": posterior_attrs})
