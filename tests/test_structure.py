"""Who is local: found from the gradient alone, beside an exhaustive search over the true precision matrix."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.interactions import Variable
from pyturingvi.models.structure import Structure, family_of_blocks, find_structure, heaviest

Gradient = Callable[[np.ndarray], np.ndarray]


def normal(precision: np.ndarray) -> Gradient:
    """The gradient of a normal log density with some curvature of higher order along each coordinate."""
    return lambda points: -points @ precision - 0.1 * points**3


def places(variables: list[Variable]) -> dict[str, np.ndarray]:
    ends = np.cumsum([variable.size for variable in variables])
    return {
        one.name: np.arange(end - one.size, end).reshape(one.shape) for one, end in zip(variables, ends, strict=True)
    }


def precision_of(variables: list[Variable], pairs: list[tuple[int, int]]) -> np.ndarray:
    """A positive definite matrix with nonzeros on the diagonal and at the pairs."""
    matrix = np.zeros((sum(one.size for one in variables),) * 2)
    for k, (i, j) in enumerate(pairs):
        matrix[i, j] = matrix[j, i] = 0.3 + 0.01 * (k % 7)
    return matrix + np.diag(1.0 + np.abs(matrix).sum(axis=1))


def assert_blocks(found: Structure, precision: np.ndarray, *, chained: bool = False) -> None:
    """No entry of the precision between blocks that the structure keeps apart."""
    n_global, dim = found.layout.n_global, len(precision)
    assert sorted(found.order) == list(range(dim))
    block = (np.arange(dim) - n_global) // max(1, found.layout.local_dim)
    inner = precision[np.ix_(found.order, found.order)][n_global:, n_global:] != 0
    apart = np.abs(block[n_global:, None] - block[None, n_global:])
    assert not inner[apart > chained].any()


def of(variables: list[Variable], pairs: list[tuple[int, int]], **settings: object) -> Structure:
    precision = precision_of(variables, pairs)
    found = find_structure(variables, normal(precision), **settings)  # type: ignore[arg-type]
    assert_blocks(found, precision, chained=found.family == "markov")
    return found


def hub(at: dict[str, np.ndarray], centre: str, *names: str) -> list[tuple[int, int]]:
    """Every element of some variables touches every one of another."""
    return [(int(i), int(j)) for name in names for i in at[centre].ravel() for j in at[name].ravel()]


def test_two_effects_by_county_are_the_locals_whatever_their_axes() -> None:
    variables = [
        Variable("mu", (2,)),
        Variable("alpha", (7,), ("county",)),
        Variable("slope", (3, 7), ("kind", "county")),
        Variable("tau", ()),
    ]
    at = places(variables)
    pairs = [*hub(at, "mu", "alpha", "slope"), *hub(at, "tau", "slope"), (0, 1)]
    pairs += [(int(at["alpha"][n]), int(at["slope"][k, n])) for n in range(7) for k in range(3)]
    pairs += [(int(at["slope"][0, n]), int(at["slope"][k, n])) for n in range(7) for k in (1, 2)]
    found = of(variables, pairs)
    assert found.layout == Layout(3, 7, 4)
    assert (found.local, found.family) == (("alpha", "slope"), "structured")
    assert found.words == "globals: mu[2], tau; 7 local blocks of 4: alpha, slope by county"
    np.testing.assert_array_equal(found.order[3:7], [at["alpha"][0], *at["slope"][:, 0]])


def test_independent_elements_of_a_matrix_are_blocks_of_their_own() -> None:
    variables = [Variable("mu", ()), Variable("eta", (5, 6), ("student", "item"))]
    found = of(variables, hub(places(variables), "mu", "eta"))
    assert found.layout == Layout(1, 30, 1)
    assert found.words.endswith("30 local blocks of 1: eta by student and item")


def test_of_crossed_effects_the_longer_side_is_local() -> None:
    variables = [Variable("item", (4,)), Variable("student", (9,)), Variable("mu", ())]
    at = places(variables)
    found = of(variables, [*hub(at, "item", "student"), *hub(at, "mu", "item", "student")])
    assert (found.layout, found.local) == (Layout(5, 9, 1), ("student",))


def test_a_chain_goes_to_the_markov_family() -> None:
    variables = [Variable("phi", ()), Variable("level", (12,), ("day",)), Variable("slope", (12,), ("day",))]
    at = places(variables)
    pairs = hub(at, "phi", "level", "slope")
    for n in range(11):
        pairs += [
            (int(at[one][n]), int(at[other][n + 1])) for one in ("level", "slope") for other in ("level", "slope")
        ]
    found = of(variables, pairs)
    assert (found.layout, found.family) == (Layout(1, 12, 2), "markov")
    assert "a chain of 12 local blocks of 2: level, slope by day; the markov family" in found.words
    assert of(variables, pairs, local=["slope", "level"]).family == "markov"


def test_what_touches_its_last_but_one_is_no_chain() -> None:
    variables = [Variable("h", (9,))]
    pairs = [(n, n + k) for k in (1, 2) for n in range(9 - k)]
    found = of(variables, pairs)
    assert (found.layout, found.family, found.local) == (Layout(9, 0, 0), "full-rank", ())
    assert found.words == "no local blocks, so the full-rank family: h[9] (9 in all)"
    with pytest.raises(InputError, match=r"local=\['h'\] contradicts .* of h\[(\d)\] and h\[(\d)\] touch") as refusal:
        of(variables, pairs, local=["h"])
    first, second = (int(part[2]) for part in str(refusal.value).split() if part.startswith("h["))
    assert abs(first - second) == 2


def test_the_pair_that_is_named_is_the_one_that_touches() -> None:
    variables = [Variable("mu", ()), Variable("u", (40,)), Variable("v", (40,))]
    at = places(variables)
    pairs = [*hub(at, "mu", "u", "v"), (int(at["u"][31]), int(at["v"][5]))]
    with pytest.raises(InputError, match=r"those of (u\[31\] and v\[5\]|v\[5\] and u\[31\]) touch"):
        of(variables, pairs, local=["u", "v"])
    assert of(variables, pairs).layout == Layout(41, 40, 1)  # one of them is global
    assert of(variables, pairs, local="u").local == ("u",)


def test_two_blocks_that_touch_are_no_chain() -> None:
    variables = [Variable("mu", ()), Variable("pair", (2,))]
    assert of(variables, [(1, 2)]).local == ()
    with pytest.raises(InputError, match=r"of the 2 blocks those of pair\[[01]\] and pair\[[01]\] touch"):
        of(variables, [(1, 2)], local=["pair"])


def test_blocks_that_are_laid_out_already_are_checked_against_the_gradient() -> None:
    globals_, h = Variable("globals", (2,)), Variable("h", (12, 3))
    at = places([globals_, h])
    inner = [(int(i), int(j)) for row in at["h"] for i, j in itertools.pairwise(row)]
    apart = hub(at, "globals", "h") + inner
    chain = apart + [(int(i), int(j)) for i, j in zip(at["h"][:-1, 0], at["h"][1:, 2], strict=True)]
    far = [*chain, (int(at["h"][2, 1]), int(at["h"][9, 0]))]

    def of_blocks(pairs: list[tuple[int, int]]) -> str:
        gradient = normal(precision_of([globals_, h], pairs))
        return family_of_blocks(Layout(2, 12, 3), "h", gradient, "Turing", first=1)

    assert of_blocks(apart) == "structured"
    assert of_blocks(chain) == "markov"
    with pytest.raises(InputError, match=r"Turing: local='h' .* (h\[3,:\] and h\[10,:\]|h\[10,:\] and h\[3,:\]) touch"):
        of_blocks(far)
    assert family_of_blocks(Layout(3, 1, 5), "h", normal(np.eye(8)), "Turing") == "structured"


def test_none_are_local_where_the_user_says_so() -> None:
    variables = [Variable("mu", ()), Variable("theta", (8,))]
    found = of(variables, hub(places(variables), "mu", "theta"), local=[])
    assert (found.layout, found.family) == (Layout(9, 0, 0), "full-rank")
    many = [Variable("w", (300,))]
    assert of(many, [], local=[]).family == "mean-field"


@pytest.mark.parametrize(
    ("local", "words"),
    [
        (["thta"], "Did you mean 'theta'"),
        (["theta", "theta"], "twice"),
        (["mu"], r"no axis of one length, of at least 2, .*: mu \(\)"),
        (["theta", "beta"], r"no axis of one length"),
        (3, "must be a list of names"),
        ([3], "Unknown local variable 3"),
    ],
)
def test_names_that_cannot_be_local_are_refused(local: object, words: str) -> None:
    variables = [Variable("mu", ()), Variable("theta", (8,)), Variable("beta", (3,))]
    with pytest.raises(InputError, match=words):
        of(variables, [], local=local)


def test_a_gradient_that_is_nowhere_finite_near_0_is_refused() -> None:
    with pytest.raises(InputError, match=r"NumPyro: the gradient .* not finite at 0, in 1 of 3 entries, .* b\[1\]"):
        find_structure([Variable("a", ()), Variable("b", (2,))], lambda x: x / [1, 1, 0], who="NumPyro")


def test_one_that_is_finite_only_very_near_0_is_not() -> None:
    def gradient(points: np.ndarray) -> np.ndarray:
        return np.where(np.abs(points).max(axis=1, keepdims=True) < 0.02, -points, np.nan)

    assert find_structure([Variable("a", (5,))], gradient).layout == Layout(0, 5, 1)


def test_twenty_thousand_crossed_effects_take_seconds() -> None:
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 19_000, 50_000), rng.integers(0, 300, 50_000)

    def gradient(x: np.ndarray) -> np.ndarray:
        slope = -x.copy()
        r = np.tanh(x[:, :1] + x[:, 1 + rows] + x[:, 19_001 + columns])
        slope[:, 0] -= r.sum(axis=1)
        for m in range(len(x)):
            slope[m, 1:19_001] -= np.bincount(rows, r[m], 19_000)
            slope[m, 19_001:] -= np.bincount(columns, r[m], 300)
        return slope

    start = time.perf_counter()
    found = find_structure([Variable("mu", ()), Variable("row", (19_000,)), Variable("column", (300,))], gradient)
    assert time.perf_counter() - start < 20  # a second and a half on one idle core
    assert (found.layout, found.local, found.family) == (Layout(301, 19_000, 1), ("row",), "structured")


# ---- beside an exhaustive search ------------------------------------------------------------------------------
def entries(n_global: int, n: int, size: int, chained: bool) -> int:
    """Entries of the scale matrix below and on its diagonal, counted one by one."""
    pattern = np.zeros((n_global + n * size,) * 2, dtype=bool)
    pattern[:, :n_global] = True
    for k in range(n):
        own = slice(n_global + k * size, n_global + (k + 1) * size)
        pattern[own, own] = True
        if chained and k:
            pattern[own, n_global + (k - 1) * size : n_global + k * size] = True
    return int(np.tril(pattern, 0).sum())


def cheapest(variables: list[Variable], precision: np.ndarray) -> int:
    """Entries of the cheapest family that holds the posterior, by looking at every way to cut every variable."""
    dim, at = len(precision), places(variables)
    ways = []
    for one in variables:
        own = [()]
        own += [
            axes
            for count in range(1, len(one.shape) + 1)
            for axes in itertools.combinations(range(len(one.shape)), count)
        ]
        ways.append(own)
    best = entries(dim, 0, 0, False)
    for choice in itertools.product(*ways):
        cut = [(one, axes) for one, axes in zip(variables, choice, strict=True) if axes]
        counts = {math.prod(one.shape[axis] for axis in axes) for one, axes in cut}
        if len(counts) != 1 or counts == {1}:
            continue
        n = counts.pop()
        blocks = np.hstack([np.moveaxis(at[one.name], axes, range(len(axes))).reshape(n, -1) for one, axes in cut])
        number = np.repeat(np.arange(n), blocks.shape[1])
        touches = precision[np.ix_(blocks.ravel(), blocks.ravel())] != 0
        reach = int(np.abs(number[:, None] - number[None, :])[touches].max())
        if reach == 0 or (reach == 1 and n > 2):
            best = min(best, entries(dim - blocks.size, n, blocks.shape[1], reach == 1))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_no_parting_is_cheaper_than_the_one_that_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = (int(k) for k in rng.choice([2, 3, 4, 5, 6], 2, replace=False))
    variables = [
        Variable("z", (2,)),
        *(Variable(f"v{k}", [(n,), (m,), (n, m), (m, n), (2, n)][int(rng.integers(5))]) for k in range(3)),
    ]
    at = places(variables)
    pairs = hub(at, "z", "v0", "v1", "v2")
    for one, other in itertools.combinations_with_replacement(variables[1:], 2):  # touching along axes they share
        shared = [(i, j) for i, a in enumerate(one.shape) for j, b in enumerate(other.shape) if a == b]
        if not shared or rng.uniform() < 0.4:
            continue
        i, j = shared[int(rng.integers(len(shared)))]
        reach = int(rng.choice([0, 0, 1, 9]))
        for left, right in itertools.product(np.ndindex(*one.shape), np.ndindex(*other.shape)):
            if abs(left[i] - right[j]) <= reach:
                pairs.append((int(at[one.name][left]), int(at[other.name][right])))
    precision = precision_of(variables, [pair for pair in pairs if pair[0] != pair[1]])
    found = find_structure(variables, normal(precision))
    layout = found.layout
    assert_blocks(found, precision, chained=found.family == "markov")
    count = entries(layout.n_global, layout.n_local, layout.local_dim, found.family == "markov")
    assert count == cheapest(variables, precision)


@pytest.mark.parametrize("seed", range(10))
def test_the_heaviest_set_without_a_conflict_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [int(w) for w in rng.integers(1, 10, 8)]
    conflicts = np.triu(rng.uniform(size=(8, 8)) < 0.35, 1)
    conflicts |= conflicts.T
    best = max(
        sum(weights[i] for i in chosen)
        for count in range(9)
        for chosen in itertools.combinations(range(8), count)
        if not conflicts[np.ix_(chosen, chosen)].any()
    )
    found = heaviest(weights, conflicts)
    assert not conflicts[np.ix_(found, found)].any()
    assert sum(weights[i] for i in found) == best


def test_of_very_many_the_largest_are_taken_first() -> None:
    conflicts = np.eye(30, k=1, dtype=bool) | np.eye(30, k=-1, dtype=bool)
    assert heaviest([10, *range(1, 30)], conflicts) == [0, *range(3, 30, 2)]
