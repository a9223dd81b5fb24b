"""LogDensity of named values: densities and gradients through transforms, names, axes, files, and what is refused."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models import LogDensity
from pyturingvi.settings import model_digest
from pyturingvi.transforms import (
    CholeskyCorrelation,
    Interval,
    LowerBounded,
    Ordered,
    Positive,
    Real,
    Simplex,
    Transform,
    lkj_log_normalizer,
)

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = Layout(n_global=2, n_local=8, local_dim=1)
CONSTRAIN = {"mu": Real(), "tau": Positive(), "effect": Real()}


def schools(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Eight schools, non-centred: mu ~ N(0, 5), tau ~ Cauchy+(0, 5)."""
    mu, tau, e = v["mu"], v["tau"], v["effect"]
    r = (Y - mu[:, None] - tau[:, None] * e) / SIGMA
    value = -0.5 * (r**2 + e**2).sum(axis=1) - 0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2)
    s = r / SIGMA
    slopes = {"mu": s.sum(axis=1) - mu / 25, "tau": (s * e).sum(axis=1) - 2 * tau / (25 + tau**2)}
    return value, {**slopes, "effect": tau[:, None] * s - e}


def with_slopes(**changed: Any) -> Any:
    """`schools` with some of its gradients put through functions; None leaves one out."""

    def fn(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        value, slopes = schools(v)
        for name, change in changed.items():
            if change is None:
                del slopes[name]
            else:
                slopes[name] = change(slopes.get(name))
        return value, slopes

    return fn


def every_transform(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Dirichlet(2, 3, 1.5), exponential rates, sorted normals, LKJ(2) globally; beta and two shifted gammas locally."""
    w, rate, cut, factor = v["w"], v["rate"], v["cut"], v["L"]
    p, x = v["p"], v["x"] - 1.5
    diagonal = np.arange(3)
    powers = np.array([0.0, 3.0, 2.0])  # D - i + 2 (eta - 1)
    value = (
        np.log(w) @ np.array([1.0, 2.0, 0.5])
        - rate.sum(axis=1)
        - 0.5 * (cut**2).sum(axis=1)
        + np.log(factor[:, diagonal, diagonal]) @ powers
        + (np.log(p) + 2 * np.log1p(-p)).sum(axis=1)
        + (1.5 * np.log(x) - x).sum(axis=(1, 2))
    )
    g_factor = np.zeros_like(factor)
    g_factor[:, diagonal, diagonal] = powers / factor[:, diagonal, diagonal]
    slopes = {
        "w": np.array([1.0, 2.0, 0.5]) / w,
        "rate": np.full_like(rate, -1.0),
        "cut": -cut,
        "L": g_factor,
        "p": 1 / p - 2 / (1 - p),
        "x": 1.5 / x - 1,
    }
    return value, slopes


EVERY = {
    "w": Simplex(3),
    "rate": Positive(2),
    "cut": Ordered(3),
    "L": CholeskyCorrelation(3),
    "p": Interval(),
    "x": LowerBounded(1.5, 2),
}
EVERY_LAYOUT = Layout(n_global=10, n_local=4, local_dim=3)
DATES = [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)]


def everything() -> LogDensity:
    dims = {"rate": ["kind"], "L": ["row", "column"], "p": ["day"], "x": ["day", "arm"]}
    coords = {"kind": ["slow", "fast"], "day": DATES, "arm": [0.5, 1.5], "row": list("abc")}
    return LogDensity(every_transform, EVERY_LAYOUT, constrain=EVERY, dims=dims, coords=coords)


# ---- densities ---------------------------------------------------------------------------------------------------
def test_log_jacobians_are_added_and_gradients_pulled_back() -> None:
    model = everything()
    points = np.random.default_rng(0).normal(size=(6, model.dim))
    assert_gradient_is_the_slope(model, points, np.eye(model.dim))
    assert_round_trip(model, points)


def test_the_log_density_is_that_of_scipy_plus_known_jacobians() -> None:
    model, v = everything(), np.random.default_rng(1).normal(size=(5, 22))
    x = model.constrain(v)
    expected = (
        stats.dirichlet([2, 3, 1.5]).logpdf(x["w"].T)
        - np.log(stats.dirichlet([2, 3, 1.5]).pdf([1 / 3] * 3) * 3.0**3.5)  # its constant: x^a at 1/3 is 3^-3.5
        + np.log(x["w"]).sum(axis=1)
        + 0.5 * np.log(3)
    )
    expected += stats.expon.logpdf(x["rate"]).sum(axis=1) + np.log(x["rate"]).sum(axis=1)
    expected += stats.norm.logpdf(x["cut"]).sum(axis=1) + 1.5 * np.log(2 * np.pi)
    expected += np.log(np.diff(x["cut"], axis=1)).sum(axis=1)
    # LKJ(2): prod (1 - r_ij^2)^((D - 1 - j)/2 + eta - 1) in partial correlations r = tanh(v); their Jacobian is sech^2
    exponents = np.array([1.5, 1.5, 1.0]) + 1.0
    expected += -2 * np.log(np.cosh(v[:, 7:10])) @ exponents
    expected += (stats.beta(2, 3).logpdf(x["p"]) - np.log(12) + np.log(x["p"] * (1 - x["p"]))).sum(axis=1)
    shifted = x["x"] - 1.5
    expected += (1.5 * np.log(shifted) - shifted + np.log(shifted)).sum(axis=(1, 2))
    np.testing.assert_allclose(model.log_density(v), expected, rtol=1e-12)
    assert np.isfinite(lkj_log_normalizer(3, 2.0))


def test_eight_schools_equals_the_same_model_written_over_unconstrained_points() -> None:
    def flat(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tau = np.exp(points[:, 1])
        value, slopes = schools({"mu": points[:, 0], "tau": tau, "effect": points[:, 2:]})
        return value + points[:, 1], np.column_stack([slopes["mu"], tau * slopes["tau"] + 1, slopes["effect"]])

    named = LogDensity(schools, SCHOOLS, constrain=CONSTRAIN)
    by_hand = LogDensity(flat, SCHOOLS)
    points = np.random.default_rng(2).normal(size=(7, 10))
    for found, expected in zip(
        named.log_density_and_gradient(points), by_hand.log_density_and_gradient(points), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
    elbos = [tv.fit(model, progress=False, seed=3).elbo["elbo"].iloc[-1] for model in (named, by_hand)]
    assert elbos[0] == pytest.approx(elbos[1], abs=1e-6)


def test_values_that_are_not_defined_pass_through() -> None:
    def fn(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        value, slopes = schools(v)
        return np.where(v["tau"] > 5, -np.inf, value), slopes

    model = LogDensity(fn, SCHOOLS, constrain=CONSTRAIN)
    points = np.zeros((2, 10))
    points[1, 1] = 2.0
    assert np.isneginf(model.log_density(points)).tolist() == [False, True]


def test_log_terms_of_named_values_hold_the_jacobians_of_their_own_variables() -> None:
    """a ~ Exp(1) globally, p_n with density a exp(-a p_n), not normalized, on (0, 1)."""

    def fn(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        a, p = v["a"], v["p"]
        return -a * (1 + p.sum(axis=1)), {"a": -1 - p.sum(axis=1), "p": np.repeat(-a[:, None], 4, axis=1)}

    def terms(v: dict[str, np.ndarray], w: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        a, p = v["a"], v["p"]
        return -a, -a[:, None] * p, {"a": -1 - (w * p).sum(axis=1), "p": -a[:, None] * w}

    constrain = {"a": Positive(), "p": Interval()}
    model = LogDensity(fn, Layout(1, 4, 1), constrain=constrain, terms=terms)
    rng = np.random.default_rng(7)
    points, weights = rng.normal(size=(3, 5)), rng.uniform(size=(3, 4))
    at_top, each, gradient = model.log_terms_and_gradient(points, weights)
    x = model.constrain(points)
    np.testing.assert_allclose(at_top, -x["a"] + np.log(x["a"]), rtol=1e-13)
    np.testing.assert_allclose(each, -x["a"][:, None] * x["p"] + np.log(x["p"] * (1 - x["p"])), rtol=1e-12)
    np.testing.assert_allclose(at_top + each.sum(axis=1), model.log_density(points), rtol=1e-13)
    for k, move in enumerate(1e-5 * np.eye(5)):
        (above_top, above), (below_top, below) = model.log_terms(points + move), model.log_terms(points - move)
        slope = (above_top - below_top + (weights * (above - below)).sum(axis=1)) / 2e-5
        np.testing.assert_allclose(gradient[:, k], slope, rtol=1e-7, atol=1e-8)


# ---- names -------------------------------------------------------------------------------------------------------
def test_results_are_in_the_users_variables_and_labels() -> None:
    model = LogDensity(
        schools, SCHOOLS, constrain=CONSTRAIN, dims={"effect": ["school"]}, coords={"school": list("ABCDEFGH")}
    )
    assert model.global_labels == ["mu", "log tau"]
    assert model.global_names == ["mu", "tau"]
    fit = tv.fit(model, progress=False)
    assert list(fit.summary().index) == ["mu", "tau"]
    assert list(fit.summary(local=True).index) == ["mu", "tau", *(f"effect[{one}]" for one in "ABCDEFGH")]
    assert (fit.sample(100)["tau"] > 0).all()
    posterior = fit.to_arviz(n=10)["posterior"]
    assert posterior["effect"].dims == ("chain", "draw", "school")
    assert posterior["school"].values.tolist() == list("ABCDEFGH")


def test_shapes_axes_and_labels_of_every_kind_of_variable() -> None:
    model = everything()
    shapes = {name: value.shape for name, value in model.constrain(np.zeros((2, 22))).items()}
    assert shapes == {"w": (2, 3), "rate": (2, 2), "cut": (2, 3), "L": (2, 3, 3), "p": (2, 4), "x": (2, 4, 2)}
    assert model.dims["w"] == ["w_dim_0"]
    assert model.dims["p"] == ["day"]
    assert model.coords["column"] == [0, 1, 2]
    assert model.scalar_labels("x")[:3] == ["x[2024-01-01,0.5]", "x[2024-01-01,1.5]", "x[2024-01-02,0.5]"]
    assert model.global_labels == [
        *("log-ratio w[1]", "log-ratio w[2]", "log rate[slow]", "log rate[fast]", "cut[0]", "log gap cut[1]"),
        "log gap cut[2]",
        *(f"atanh partial correlation L[{pair}]" for pair in ("b,0", "c,0", "c,1")),
    ]


def test_locals_share_the_axis_of_the_blocks() -> None:
    assert LogDensity(every_transform, EVERY_LAYOUT, constrain=EVERY).dims["x"] == ["block", "x_dim_1"]
    model = LogDensity(every_transform, EVERY_LAYOUT, constrain=EVERY, dims={"x": ["day", "arm"]})
    assert model.dims["p"] == ["day"]


def test_without_constrain_names_dims_and_coords_are_kept_too() -> None:
    def quartic(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -(points**4).sum(axis=1) / 4, -(points**3)

    layout = Layout(2, 3, 1)
    model = LogDensity(quartic, layout, names=["a", "b", "c", "d", "e"])
    assert model.scalar_labels("y") == ["y[c]", "y[d]", "y[e]"]
    assert model.coords == {"global": ["a", "b"], "block": ["c", "d", "e"], "local": [0]}
    wide = LogDensity(quartic, Layout(1, 2, 2), names=["a", "b", "c", "d", "e"])
    assert wide.scalar_labels("y") == ["y[b]", "y[c]", "y[d]", "y[e]"]
    dims, coords = {"z": ["what"], "y": ["day", "side"]}, {"what": ["a", "b"], "day": ["mo", "tu", "we"]}
    model = LogDensity(quartic, layout, dims=dims, coords=coords)
    assert model.scalar_labels("z") + model.scalar_labels("y") == ["z[a]", "z[b]", "y[mo,0]", "y[tu,0]", "y[we,0]"]
    assert LogDensity.from_state(model.get_state()).coords == {
        "what": ["a", "b"],
        "day": ["mo", "tu", "we"],
        "side": [0],
    }
    with pytest.raises(InputError, match="names label z already"):
        LogDensity(quartic, layout, names=["a", "b"], coords={"global": [1, 2]})


# ---- files -------------------------------------------------------------------------------------------------------
def test_a_saved_model_keeps_transforms_names_and_labels() -> None:
    model = everything()
    state = json.loads(json.dumps(model.get_state()))  # as a file gives it back
    restored = LogDensity.from_state(state)
    points = np.random.default_rng(3).normal(size=(3, 22))
    found, expected = restored.constrain(points), model.constrain(points)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
        assert restored.scalar_labels(name) == model.scalar_labels(name)
    assert (restored.dims, restored.coords, restored.global_labels) == (model.dims, model.coords, model.global_labels)
    with pytest.raises(InputError, match="does not hold its function"):
        restored.log_density(points)


def test_another_transform_is_another_model() -> None:
    def fn(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return -v["x"], {"x": -np.ones_like(v["x"])}

    layout = Layout(1, 0, 0)
    digests = {
        model_digest(LogDensity(fn, layout, constrain={name: one}))
        for name, one in (("x", Positive()), ("x", LowerBounded(0.0)), ("x", LowerBounded(1.0)), ("x", Interval()))
    }
    assert len(digests) == 4


@dataclass(frozen=True)
class Cubed(Transform):
    """x = v + v^3, a transform of one's own; its inverse by Newton's method."""

    shape: Any = ()

    def _forward(self, v: np.ndarray) -> Any:
        v = v[..., 0]
        slope = 1 + 3 * v**2
        return v + v**3, np.log(slope), lambda gradient, weight: gradient * slope + weight * 6 * v / slope

    def _inverse(self, x: np.ndarray) -> np.ndarray:
        v = np.cbrt(x)
        for _ in range(60):
            v = v - (v + v**3 - x) / (1 + 3 * v**2)
        return v[..., None]


def test_a_transform_of_ones_own_and_a_fit_saved_with_it(tmp_path: Any) -> None:
    def fn(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return -0.5 * v["x"] ** 2, {"x": -v["x"]}

    model = LogDensity(fn, Layout(1, 0, 0), constrain={"x": Cubed()})
    points = np.random.default_rng(4).normal(size=(4, 1))
    assert_gradient_is_the_slope(model, points, np.eye(1))
    assert_round_trip(model, points)
    assert model.global_labels == ["free 0 of x"]
    fit = tv.fit(model, progress=False, n_iterations=5, optimizer=tv.Adam(0.01))
    path = fit.save(tmp_path / "fit.npz")
    with pytest.raises(InputError, match="holds no model"):
        tv.load_fit(path)
    assert tv.load_fit(path, model=model).summary().equals(fit.summary())
    tv.register(Cubed)
    try:
        assert tv.load_fit(fit.save(tmp_path / "again.npz")).summary().equals(fit.summary())
    finally:
        del Transform.registry["Cubed"]


# ---- what is refused ---------------------------------------------------------------------------------------------
def build(fn: Any = schools, **changed: Any) -> LogDensity:
    return LogDensity(fn, **{"layout": SCHOOLS, "constrain": CONSTRAIN, **changed})


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (with_slopes(tau=lambda g: -g), r"wrong gradient: with respect to 'log tau', .* opposite sign"),
        (with_slopes(mu=lambda g: 2 * g), "wrong gradient: with respect to 'mu'"),
        (with_slopes(effect=lambda g: 0 * g), r"wrong gradient: with respect to 'effect\[\d\]'"),
        (with_slopes(effect=None), "a gradient for each of 'mu', 'tau', 'effect'; what it returned lacks 'effect'"),
        (with_slopes(sigma=lambda g: 0.0), "has 'sigma', which is no variable"),
        (with_slopes(effect=lambda g: g.sum(axis=1)), r"gradient of 'effect' of shape \(3, 8\) .* returned \(3,\)"),
        (with_slopes(mu=lambda g: g.astype(complex)), "gradient of 'mu' of dtype complex"),
        (lambda v: (schools(v)[0].sum(), schools(v)[1]), r"log density of shape \(3,\) .* returned \(\)"),
        (lambda v: (schools(v)[0], schools(v)[1]["effect"]), "dictionary of its gradients.* tuple of ndarray and ndar"),
        (lambda v: schools(v)[0], "returned a ndarray"),
    ],
)
def test_a_function_that_breaks_the_contract_is_refused(fn: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(fn)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"names": ["a", "b"]}, "names or constrain"),
        ({"constrain": {}}, "must be a dictionary of the variables' names and transforms"),
        ({"constrain": [Real()]}, "must be a dictionary"),
        ({"constrain": {**CONSTRAIN, "tau": Positive}}, r"'tau' must be Positive\(\), got <class"),
        ({"constrain": {**CONSTRAIN, "tau": "positive"}}, "'tau' must be one of tv.transforms, got 'positive'"),
        ({"constrain": {3: Real(10)}}, "name must be a string, got 3"),
        ({"constrain": {"mu": Real(), "tau": Positive()}}, r"n_global=2 .* local_dim=1. .*: mu 1, tau 1\."),
        ({"constrain": {**CONSTRAIN, "effect": Real(8)}}, "for one block alone, of local_dim=1. .* effect 8"),
        ({"constrain": {"both": Real(3), "effect": Real()}}, "must fill the layout"),
        ({"dims": {"efect": ["school"]}}, "variable in LogDensity's dims 'efect'. Did you mean 'effect'"),
        ({"dims": {"mu": ["one"]}}, r"dims of 'mu' must name 0 axes, of shape \(\)"),
        ({"dims": {"effect": ["draw"]}}, r"chain, draw, sample; got \['draw'\]\. Name it otherwise by dims=: 'draw'"),
        ({"dims": {"effect": ["tau"]}}, "from the variables' names"),
        ({"dims": [["school"]]}, "dims must be a dictionary"),
        ({"coords": {"school": range(8)}}, "axis in LogDensity's coords 'school'. .*Known: block"),
        ({"coords": {"block": range(7)}}, "coords of 'block' must be 8 labels, got 7"),
        ({"coords": {"block": "ABCDEFGH"}}, "must be a list of 8 labels"),
        ({"coords": {"block": list("AABCDEFG")}}, "'A' is there twice"),
        ({"coords": {"block": [[1]] * 8}}, "must be strings, numbers or dates"),
    ],
)
def test_names_that_do_not_fit_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(**changed)


def test_axes_of_one_name_have_one_length() -> None:
    with pytest.raises(InputError, match="'k' is an axis of 3 in 'w', and of 2 in 'rate'"):
        LogDensity(every_transform, EVERY_LAYOUT, constrain=EVERY, dims={"w": ["k"], "rate": ["k"]})


def test_a_value_outside_its_support_is_named() -> None:
    model = build()
    values = {name: array[0] for name, array in model.constrain(np.zeros((1, 10))).items()}
    with pytest.raises(InputError, match="log_density: tau: Positive: x must be positive"):
        model.unconstrain(values | {"tau": -1.0})
    with pytest.raises(InputError, match="unconstrain needs 'effect'"):
        model.unconstrain({"mu": 0.0, "tau": 1.0})


def test_the_function_cannot_write_into_the_values() -> None:
    def careless(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        v["tau"][:] = 1.0
        return schools(v)

    with pytest.raises(ValueError, match="read-only"):
        build(careless)


# ---- functions of one point --------------------------------------------------------------------------------------
def test_a_function_of_one_point_is_called_in_a_loop_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    model = LogDensity(lambda x: (-0.5 * x @ precision @ x, -precision @ x), Layout(2, 0, 0))
    assert "fn takes one point, so it is called point by point. One that takes (M, d) arrays" in capsys.readouterr().err
    points = np.random.default_rng(5).normal(size=(4, 2))
    np.testing.assert_allclose(model.log_density(points), -0.5 * np.einsum("mi,ij,mj->m", points, precision, points))
    np.testing.assert_allclose(model.gradient(points), -points @ precision)


def test_a_function_of_the_values_of_one_point_too(capsys: pytest.CaptureFixture[str]) -> None:
    def one(v: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        value, slopes = schools({name: np.asarray(part)[None] for name, part in v.items()})
        return float(value[0]), {name: part[0] for name, part in slopes.items()}

    model = build(one)
    assert "dictionaries of arrays" in capsys.readouterr().err
    points = np.random.default_rng(6).normal(size=(4, 10))
    np.testing.assert_array_equal(model.log_density(points), build().log_density(points))
    np.testing.assert_array_equal(model.gradient(points), build().gradient(points))


def test_a_wrong_gradient_of_one_point_is_refused_all_the_same() -> None:
    with pytest.raises(InputError, match=r"wrong gradient: with respect to coordinate [01] \(z\[[01]\]\)"):
        LogDensity(lambda x: (-0.5 * x @ x, x), Layout(2, 0, 0))


def test_what_fails_for_one_point_too_is_told_as_it_failed_for_many() -> None:
    with pytest.raises(ZeroDivisionError):
        LogDensity(lambda x: 1 / 0, Layout(2, 0, 0))
