"""What draws from a fit and draws of NUTS share: labels of their scalars, and the way to ArviZ."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from pyturingvi.errors import DataError
from pyturingvi.models.base import Model


def scalar_labels(model: Model, name: str) -> list[str]:
    """One label for each scalar of a natural variable, e.g. `beta[age]`."""
    axes = [model.coords[axis] for axis in model.dims[name]]
    if not axes:
        return [name]
    return [f"{name}[{','.join(str(i) for i in index)}]" for index in itertools.product(*axes)]


def arviz_tree(model: Model, groups: dict[str, dict[str, np.ndarray]], posterior_attrs: dict[str, Any]) -> Any:
    """An ArviZ DataTree of arrays (chain, draw, ...), with the model's axes and their labels.

    Raises
    ------
    DataError
        Without arviz-base.
    """
    try:
        from arviz_base import from_dict
    except ImportError:
        raise DataError("to_arviz needs arviz-base: pip install 'pyturingvi[arviz]'.") from None
    return from_dict(
        groups,
        dims={name: dims for name, dims in model.dims.items() if dims},
        coords=model.coords,
        attrs={"posterior": posterior_attrs},
    )
