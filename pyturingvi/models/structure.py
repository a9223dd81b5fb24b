"""Who is local: found from the gradient of a log density, or checked against it where the user says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.interactions import APART, CHAINED, CROSSED, Interactions, Member, Variable, members

LARGEST_FULL_RANK = 200  # coordinates; beyond, an update with a scale matrix of all of them costs too much
MOST_PARAMETERS = 10_000_000  # of a structured or Markov family that is taken without being asked for
_EXACT = 14  # members of which the best set is searched; of more it is put together from the largest down
_SHOWN = 8  # names in the line


@dataclass(frozen=True)
class Structure:
    """Who is global and who is local in a flat vector of named variables.

    Attributes
    ----------
    layout : Layout
    order : (d,) array
        Place in the flat vector of each coordinate of the layout.
    local : tuple of str
        Names of the local variables.
    family : str
        The family of `tv.fit` that the structure asks for.
    words : str
        All of it in one line.
    """

    layout: Layout
    order: np.ndarray
    local: tuple[str, ...]
    family: str
    words: str


def find_structure(
    variables: Sequence[Variable],
    gradient: Callable[[np.ndarray], np.ndarray],
    local: Iterable[str] | None = None,
    who: str = "structure",
) -> Structure:
    """Part the variables of a log density into globals and equal local blocks.

    Given the globals no two blocks may touch, or each only its neighbours in the order of their index: a chain, for the
    Markov family. Of all such partings that go along axes of the variables the one is taken whose family has the fewest
    parameters: crossed effects leave the shorter side global, and nested ones the outer where blocks would be large.

    Parameters
    ----------
    variables : sequence of Variable
        In the order in which they stand in a point; their sizes add up to d.
    gradient : callable
        Of points (M, d), the gradient (M, d) of the log density. It is called with batches of 16.
    local : list of str, optional
        Names of the variables that shall be local; [] for none.
    who : str
        How messages begin.

    Raises
    ------
    InputError
        If a name is unknown, the named variables cannot be cut into equally many blocks, or such blocks touch beyond
        their neighbours; the message names a pair that does.
    """
    variables = list(variables)
    names = [variable.name for variable in variables]
    wanted = None if local is None else check_local(local, names, who)
    found = Interactions(gradient, variables, who)
    if wanted is None:
        chosen, chained = _search(found)
    else:
        chosen, chained = _confirm(found, wanted, who) if wanted else ([], False)
    return _structure(variables, chosen, chained)


def family_of_blocks(
    layout: Layout, name: str, gradient: Callable[[np.ndarray], np.ndarray], who: str, first: int = 0
) -> str:
    """What local blocks that are laid out already ask for: "structured", or "markov" where they are a chain.

    Parameters
    ----------
    layout : Layout
        Of the points of the gradient.
    name : str
        What the locals are called in messages.
    gradient : callable
        Of points (M, d), the gradient (M, d) of the log density.
    who : str
        How messages begin.
    first : int
        What the blocks are counted from in messages.

    Raises
    ------
    InputError
        If given the globals a block touches others than its neighbours; the message names such a pair.
    """
    n = layout.n_local
    if n < 2:
        return "structured"
    found, member = _of_layout(layout, name, gradient, who, first)
    relation = found.relation(member, member)
    if relation > (CHAINED if n > 2 else APART):
        raise InputError(f"{who}: local={name!r} contradicts the log density: {_refusal(found, member, [], n)}.")
    return "markov" if relation == CHAINED else "structured"


def locals_are_crossed(layout: Layout, gradient: Callable[[np.ndarray], np.ndarray], who: str) -> bool:
    """Whether given the globals a local block touches others than its neighbours.

    Raises
    ------
    InputError
        If the gradient is not finite at 0.
    """
    if layout.n_local < 3:
        return False
    found, member = _of_layout(layout, "locals", gradient, who)
    return found.relation(member, member) == CROSSED


def _of_layout(
    layout: Layout, name: str, gradient: Callable[[np.ndarray], np.ndarray], who: str, first: int = 0
) -> tuple[Interactions, Member]:
    n, d_z = layout.n_local, layout.n_global
    blocks = Variable(name, (n,) if layout.local_dim == 1 else (n, layout.local_dim), first=first)
    variables = [Variable("globals", (d_z,)), blocks] if d_z else [blocks]
    return Interactions(gradient, variables, who), Member(len(variables) - 1, blocks, (0,), d_z)


def check_local(local: Any, names: Sequence[str], who: str) -> list[str]:
    """Names of local variables as a list, or an InputError where they are no names of variables."""
    if isinstance(local, bytes) or not isinstance(local, Iterable):
        raise InputError(f"{who}: local must be a list of names of variables, [] for none, got {local!r}.")
    given = [local] if isinstance(local, str) else list(local)
    for name in given:
        if name not in names:
            raise unknown_name("local variable", name, names)
    if len(set(given)) < len(given):
        raise InputError(f"{who}: local names a variable twice: {', '.join(given)}.")
    return given


def n_parameters(n_global: int, n_local: int, local_dim: int, chained: bool = False) -> int:
    """Entries of the scale matrix of the structured family, or of the Markov family."""
    own = local_dim * (local_dim + 1) // 2
    chain = (n_local - 1) * local_dim**2 if chained else 0
    return n_global * (n_global + 1) // 2 + n_local * (local_dim * n_global + own) + chain


# ---- the search -----------------------------------------------------------------------------------------------
def _search(found: Interactions) -> tuple[list[Member], bool]:
    """The members of the cheapest parting, and whether they are a chain; none where there is no parting."""
    dim = found.dim
    best: tuple[list[Member], bool] = [], False
    least = n_parameters(dim, 0, 0)
    by_count: dict[int, list[Member]] = {}
    for member in members(found.variables):
        by_count.setdefault(member.n_blocks, []).append(member)

    def bound(n: int) -> int:
        size = sum({member.place: member.variable.size for member in by_count[n]}.values())
        return n_parameters(dim - size, n, size // n)

    for n in sorted(by_count, key=bound):
        if bound(n) >= least:
            break
        own = [(member, found.relation(member, member)) for member in by_count[n]]
        able = [member for member, relation in own if relation <= (CHAINED if n > 2 else APART)]
        relations = np.full((len(able), len(able)), CROSSED)
        for i, first in enumerate(able):
            for j in range(i, len(able)):
                if i == j or first.place != able[j].place:
                    relations[i, j] = relations[j, i] = found.relation(first, able[j])
        for allowed in (APART, CHAINED) if n > 2 else (APART,):
            fit = [i for i in range(len(able)) if relations[i, i] <= allowed]
            weights = [able[i].variable.size for i in fit]
            picked = [fit[i] for i in heaviest(weights, relations[np.ix_(fit, fit)] > allowed)]
            size = sum(able[i].variable.size for i in picked)
            chained = bool((relations[np.ix_(picked, picked)] == CHAINED).any())
            if picked and n_parameters(dim - size, n, size // n, chained) < least:
                least = n_parameters(dim - size, n, size // n, chained)
                best = [able[i] for i in picked], chained
    return best


def heaviest(weights: Sequence[int], conflicts: np.ndarray) -> list[int]:
    """The set of largest weight without a conflict: exactly for a few, from the largest down for many."""
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])
    if len(ranked) > _EXACT:
        picked: list[int] = []
        for i in ranked:
            if not any(conflicts[i, j] for j in picked):
                picked.append(i)
        return sorted(picked)

    def best_of(rest: list[int]) -> tuple[int, list[int]]:
        if not rest:
            return 0, []
        first, others = rest[0], rest[1:]
        weight, kept = best_of([i for i in others if not conflicts[first, i]])
        with_it = weight + weights[first], [first, *kept]
        clashing = any(conflicts[first, i] for i in others)
        return max(with_it, best_of(others), key=lambda one: one[0]) if clashing else with_it

    return sorted(best_of(ranked)[1])


def _confirm(found: Interactions, names: list[str], who: str) -> tuple[list[Member], bool]:
    """The members that the names stand for, and whether they are a chain; an InputError where the gradient says no."""
    by_count: dict[int, dict[str, list[Member]]] = {}
    for member in members(found.variables):
        if member.variable.name in names:
            by_count.setdefault(member.n_blocks, {}).setdefault(member.variable.name, []).append(member)
    common = {n: ways for n, ways in by_count.items() if len(ways) == len(names)}
    if not common:
        shapes = {variable.name: variable.shape for variable in found.variables}
        described = ", ".join(f"{name} {shapes[name]}" for name in names)
        raise InputError(
            f"{who}: local={names!r}: these have no axis of one length, of at least 2, to be cut into blocks along: "
            f"{described}."
        )
    size = sum(variable.size for variable in found.variables if variable.name in names)
    refusal = ""
    for n in sorted(common, key=lambda n: n_parameters(found.dim - size, n, size // n)):
        picked: list[Member] = []
        chained = False
        for name in names:
            for member in common[n][name]:
                worst = max(found.relation(member, other) for other in [*picked, member])
                if worst <= (CHAINED if n > 2 else APART):
                    picked, chained = [*picked, member], chained or worst == CHAINED
                    break
            else:
                refusal = refusal or _refusal(found, common[n][name][0], picked, n)
                break
        else:
            return picked, chained
    raise InputError(
        f"{who}: local={names!r} contradicts the log density: {refusal}. Leave local=None, and what can be local is "
        "found."
    )


def _refusal(found: Interactions, member: Member, picked: list[Member], n: int) -> str:
    """Which blocks touch that may not."""
    allowed = CHAINED if n > 2 else APART
    other = next(one for one in [member, *picked] if found.relation(member, one) > allowed)
    one, two = found.pair(member, other, 1 if n > 2 else 0)
    return f"of the {n} blocks those of {one} and {two} touch each other, and would have to be independent"


# ---- what was found -------------------------------------------------------------------------------------------
def _structure(variables: list[Variable], chosen: list[Member], chained: bool) -> Structure:
    dim = sum(variable.size for variable in variables)
    chosen = sorted(chosen, key=lambda member: member.place)
    blocks = np.hstack([member.coordinates for member in chosen]) if chosen else np.empty((0, 0), dtype=int)
    layout = Layout(dim - blocks.size, *blocks.shape)
    is_global = np.ones(dim, dtype=bool)
    is_global[blocks.ravel()] = False
    order = np.concatenate([np.flatnonzero(is_global), blocks.ravel()])
    local = tuple(member.variable.name for member in chosen)
    globals_ = [_shaped(variable) for variable in variables if variable.name not in local]
    if not chosen:
        family = "full-rank" if dim <= LARGEST_FULL_RANK else "mean-field"
        words = f"no local blocks, so the {family} family: {_listed(globals_)} ({dim:,} in all)"
        return Structure(layout, order, local, family, words)
    family = "markov" if chained else "structured"
    size = n_parameters(layout.n_global, layout.n_local, layout.local_dim, chained)
    kind = f"a chain of {layout.n_local:,} local blocks" if chained else f"{layout.n_local:,} local blocks"
    by = {member.index_name for member in chosen}
    counted = f" by {by.pop()}" if len(by) == 1 and "" not in by else ""
    words = f"globals: {_listed(globals_) or 'none'}; {kind} of {layout.local_dim}: {_listed(local)}{counted}"
    if size > MOST_PARAMETERS:
        words += f"; the mean-field family, since {family} would take {size:,} parameters"
        family = "mean-field"
    elif chained:
        words += "; the markov family"
    return Structure(layout, order, local, family, words)


def _shaped(variable: Variable) -> str:
    shape = ",".join(map(str, variable.shape))
    return f"{variable.name}[{shape}]" if shape else variable.name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
