"""The models of `door_data.py` as each language has them, and the line that takes one in. Used by `door_case.py`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Door:
    """A model as its own language has it.

    source: what a user of that language has. code: how many lines it took. line: the user's line that takes it in.
    density: log density of the source, in its unconstrained space, at the natural values of one point. standard: sites
    that NUTS is given as standard variables.
    """

    source: Any
    code: int
    line: str
    density: Callable[[Values], float]
    standard: Sequence[str] = ()


# ---- the sources --------------------------------------------------------------------------------------------
def numpyro_door(problem: str, data: Values) -> Door:
    import door_numpyro
    import jax
    from numpyro.infer.util import potential_energy, unconstrain_fn

    function = door_numpyro.MODELS[problem]
    latents = latent_sites(function, data)

    def density(values: Values) -> float:
        with jax.enable_x64(True):
            free = unconstrain_fn(function, (), data, {name: values[name] for name in latents})
            return -float(potential_energy(function, (), data, free))

    line = "model = tv.models.NumPyro(source, kwargs=data)"
    return Door(function, lines_of(function), line, density, door_numpyro.STANDARD.get(problem, ()))


def latent_sites(function: Any, data: Values) -> list[str]:
    """Names of the sites that are sampled."""
    import numpyro

    found = numpyro.handlers.trace(numpyro.handlers.seed(function, 0)).get_trace(**data)
    return [name for name, site in found.items() if site["type"] == "sample" and not site["is_observed"]]


def pymc_door(problem: str, data: Values) -> Door:
    import door_pymc

    function = door_pymc.MODELS[problem]
    source = function(**data)
    compiled = source.compile_logp()

    def density(values: Values) -> float:
        point = {}
        for variable in source.free_RVs:
            transform, value = source.rvs_to_transforms[variable], values[variable.name]
            free = value if transform is None else transform.forward(value, *variable.owner.inputs).eval()
            point[source.rvs_to_values[variable].name] = np.asarray(free)
        return float(compiled(point))

    return Door(source, lines_of(function) - 1, "model = tv.models.PyMC(source)", density)  # its last line returns


def jax_door(problem: str, data: Values) -> Door:
    import jax
    import radon

    source, example = radon.jax_density(**data)

    def density(values: Values) -> float:
        with jax.enable_x64(True):
            return float(source(values))

    lines = lines_of(source) + 1  # the example
    return Door((source, example), lines, "model = tv.models.Jax(*source)", density)


def stan_door(problem: str, data: Values) -> Door:
    import bridgestan
    import door_stan

    from pyturingvi.models.stan_library import as_json, compiled

    code, stan_data = door_stan.MODELS[problem](**data)
    _, library, _ = compiled(code)  # compiled by now, as a user's program is from the second time on
    theirs = bridgestan.StanModel(str(library), as_json(stan_data))

    def density(values: Values) -> float:
        flat = [values[name][tuple(int(k) - 1 for k in index)] for name, *index in map(parts, theirs.param_names())]
        free = theirs.param_unconstrain(np.array(flat, dtype=float))
        return float(theirs.log_density(free, propto=False, jacobian=True))

    def parts(name: str) -> list[str]:  # Stan's `line.3.2`
        return name.split(".")

    lines = sum(bool(line.strip()) for line in code.splitlines())
    return Door((code, stan_data), lines, "model = tv.models.Stan(*source)", density)


DOORS = {"NumPyro": numpyro_door, "PyMC": pymc_door, "Jax": jax_door, "Stan": stan_door}


def lines_of(function: Any) -> int:
    """Lines of a function with code in them, without its docstring and imports."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if ast.get_docstring(tree) is not None:
        body = body[1:]
    return 1 + len({line for node in body for line in range(node.lineno, (node.end_lineno or 0) + 1)})
