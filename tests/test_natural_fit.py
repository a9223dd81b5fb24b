"""Whole fits by natural gradients on the NumPy engine: known optima, how they end, and exact resumption."""

from __future__ import annotations

import functools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import integrate
from targets import TRACE, GaussianTarget, assert_same_run, hierarchical_normal

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.families import FullRank, MeanField, Structured
from pyturingvi.layout import Layout
from pyturingvi.support.archive import read_archive, write_archive
from pyturingvi.support.interrupts import request_interrupt

LAYOUT = Layout(2, 3, 1)
# what the optimizer does is asked here, not whether the family holds the posterior
misfit_allowed = pytest.mark.filterwarnings("ignore:.*The fit converged, but do not trust it")
each_family = pytest.mark.parametrize("family", ["mean-field", "structured", "full-rank"])


def fit(model: tv.models.Model, *arguments: Any, **changes: Any) -> tv.Fit:
    return tv.fit(model, *arguments, **{"progress": False, "engine": "numpy", **changes})


def last(found: tv.Fit) -> tuple[float, float]:
    """The final ELBO and its standard error."""
    row = found.elbo.iloc[-1]
    assert row["iteration"] == found.n_updates
    return float(row["elbo"]), float(row["std_error"])


def optimal_elbo(target: GaussianTarget, family: Any) -> tuple[float, np.ndarray]:
    """Of the best fit to a normalized Gaussian, `d/2 + log det C + log det P / 2 - tr(C' P C)/2`; its parameters."""
    bound = tv.families.get_family(family).bind(target.layout)
    flat = bound.nearest_gaussian(target.mean, target.precision)
    c = bound.scale(flat).toarray()
    log_det = np.log(np.abs(np.diag(c))).sum() + 0.5 * np.linalg.slogdet(target.precision)[1]
    return 0.5 * len(c) + log_det - 0.5 * np.trace(c.T @ target.precision @ c), flat


# ---- targets whose answer is known --------------------------------------------------------------------------
@pytest.mark.parametrize("scale", [1e-4, 1e4])
@each_family
def test_gaussian_targets_are_reached_whatever_their_units(family: str, scale: float) -> None:
    plain = hierarchical_normal()
    target = GaussianTarget(scale * plain.mean, plain.precision / scale**2, plain.layout)
    found = fit(target.model, family)
    expected, flat = optimal_elbo(target, family)
    elbo, error = last(found)
    assert found.status == "converged"
    assert found.family.name == family
    assert abs(elbo - expected) < 0.1 + 4 * error
    location, spread = found.location, np.sqrt((found.scale.toarray() ** 2).sum(axis=1))
    bound = found.family.bind(target.layout)
    optimal_spread = np.sqrt((bound.scale(flat).toarray() ** 2).sum(axis=1))
    np.testing.assert_allclose(location, target.mean, atol=0.15 * optimal_spread.max())
    np.testing.assert_allclose(spread, optimal_spread, rtol=0.15)


@pytest.mark.parametrize("layout", [(0, 3, 2), (0, 3, 1), (3, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)], ids=str)
def test_every_layout_is_solved(layout: tuple[int, int, int]) -> None:
    n_global, n_local, local_dim = layout
    target = (
        hierarchical_normal(n_global, n_local, local_dim)
        if n_global and n_local
        else GaussianTarget(
            np.linspace(1, 3, Layout(*layout).dim), np.diag(np.geomspace(1, 9, Layout(*layout).dim)), Layout(*layout)
        )
    )
    found = fit(target.model)
    assert found.status == "converged"
    assert last(found)[0] == pytest.approx(0, abs=0.05)  # structured holds the posterior itself


@pytest.mark.parametrize("base", ["laplace", ("student_t", 6)], ids=str)
@each_family
def test_other_bases_reach_the_same_location_and_scale(family: str, base: Any) -> None:
    """The optimum of a location-scale family on a Gaussian target is the same for every base."""
    target = hierarchical_normal()
    chosen = {"mean-field": MeanField, "structured": Structured, "full-rank": FullRank}[family](base=base)
    found = fit(target.model, chosen)
    _, flat = optimal_elbo(target, family)
    bound = chosen.bind(target.layout)
    assert found.status == "converged"
    expected = np.sqrt((bound.scale(flat).toarray() ** 2).sum(axis=1))
    np.testing.assert_allclose(np.sqrt((found.scale.toarray() ** 2).sum(axis=1)), expected, rtol=0.25)
    np.testing.assert_allclose(found.location, target.mean, atol=0.3)


def test_the_non_standardized_form_is_the_same_distribution() -> None:
    target = hierarchical_normal()
    one, other = (fit(target.model, Structured(standardized=form)) for form in (True, False))
    np.testing.assert_allclose(other.location, one.location, atol=1e-9)
    np.testing.assert_allclose(other.scale.toarray(), one.scale.toarray(), atol=1e-9)
    assert not np.allclose(other.params, one.params)
    assert other.n_updates == one.n_updates


X = np.array([1.17, 2.97, 3.26, 4.69, 5.83, 6, 6.41])
Y = np.array([78.93, 58.2, 67.47, 37.47, 45.65, 32.92, 29.97])


def seven_points(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`y ~ N(a + b x, s)`, `a, b ~ N(0, 100)`, `s ~ Cauchy+(0, 5)`, on `[a, b, log s]`."""
    a, b, log_s = points.T
    s2 = np.exp(2 * log_s)
    r = Y - a[:, None] - b[:, None] * X
    squares = (r**2).sum(axis=1)
    value = -0.5 * squares / s2 - 6 * log_s - 0.5 * (a**2 + b**2) / 1e4 - np.log1p(s2 / 25)
    of_s = squares / s2 - 6 - 2 * s2 / 25 / (1 + s2 / 25)
    return value, np.stack([r.sum(axis=1) / s2 - a / 1e4, (r * X).sum(axis=1) / s2 - b / 1e4, of_s], axis=1)


def test_a_regression_on_raw_scales_is_solved() -> None:
    """Against quadrature over log s, given which a and b are Gaussian."""
    design = np.stack([np.ones(7), X], axis=1)

    def given_s(log_s: float) -> tuple[float, float, float]:
        s2 = math.exp(2 * log_s)
        precision = design.T @ design / s2 + np.eye(2) / 1e4
        mean = np.linalg.solve(precision, design.T @ Y / s2)
        top = seven_points(np.array([[*mean, log_s]]))[0][0] - 0.5 * np.linalg.slogdet(precision)[1]
        return math.exp(top + 20), mean[1], np.linalg.inv(precision)[1, 1]

    def moment(function: Any) -> float:
        return integrate.quad(lambda log_s: given_s(log_s)[0] * function(*given_s(log_s)[1:]), 0.5, 5)[0]

    weight = moment(lambda mean, variance: 1)
    slope = moment(lambda mean, variance: mean) / weight
    sd = math.sqrt(moment(lambda mean, variance: variance + mean**2) / weight - slope**2)
    assert slope == pytest.approx(-8.88, abs=0.05)
    found = fit(tv.models.LogDensity(seven_points, Layout(3, 0, 0)), "full-rank")
    assert found.status == "converged"
    assert found.location[1] == pytest.approx(slope, abs=0.1 * sd)
    spread = np.linalg.norm(found.scale.toarray()[1])
    assert 0.7 * sd < spread < 1.05 * sd  # a Gaussian lacks the tail of the t that the slope has


def eight_schools(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    mu, log_tau, e = x[:, :1], x[:, 1:2], x[:, 2:]
    tau = np.exp(log_tau)
    r = (y - mu - tau * e) / sigma
    value = -0.5 * (r**2).sum(1) - 0.5 * (e**2).sum(1) - mu[:, 0] ** 2 / 50 + log_tau[:, 0]
    value -= np.log1p((tau[:, 0] / 5) ** 2)
    s = r / sigma
    of_tau = tau * (s * e).sum(1, keepdims=True) + 1 - 2 * (tau / 5) ** 2 / (1 + (tau / 5) ** 2)
    return value, np.hstack([s.sum(1, keepdims=True) - mu / 25, of_tau, tau * s - e])


SCHOOLS = tv.models.LogDensity(eight_schools, Layout(2, 8, 1))


@functools.cache
def whole_schools(every: int | None = None) -> tv.Fit:
    """The default fit, which tests compare with and leave as it is."""
    return fit(SCHOOLS, elbo_every=every)


def test_eight_schools() -> None:
    """Adam(1e-3) ends at 7.60 after 50,000 updates."""
    for seed in range(3):
        found = fit(SCHOOLS, seed=seed, elbo_samples=20_000)
        assert found.status == "converged"
        assert last(found)[0] > 7.6
        assert found.n_updates < 500


def test_a_start_whose_draws_overflow_is_narrowed(tmp_path: Path) -> None:
    """With variables in units of 10,000 the start's log tau has a standard deviation of 1,000."""

    def coarse(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            value, slope = eight_schools(1e4 * x)
        return value, 1e4 * slope

    model = tv.models.LogDensity(coarse, Layout(2, 8, 1))
    found = fit(model, elbo_samples=20_000)
    assert found.status == "converged"
    assert last(found)[0] + 10 * math.log(1e4) > 7.6  # the units move the ELBO by as much
    path = tmp_path / "run.npz"
    fit(model, elbo_samples=20_000, checkpoint=path, callback=lambda *_: True)
    assert_same_run(fit(model, elbo_samples=20_000, checkpoint=path), found)


# ---- models of this package ---------------------------------------------------------------------------------
def poisson_of(counts: Any, x: Any) -> tv.models.Model:
    return tv.models.RobustPoisson(np.asarray(x, dtype=float), np.asarray(counts))


def poisson_model(seed: int, n: int = 20, p: int = 2, level: float = 0.5) -> tv.models.Model:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p))
    eta = level + x @ random.normal(scale=0.5, size=p) + random.normal(scale=0.5, size=n)
    return poisson_of(random.poisson(np.exp(eta)), x)


@misfit_allowed
@pytest.mark.parametrize(
    "model",
    [
        poisson_model(0, n=40, level=math.log(1e9)),
        poisson_model(1),
        tv.models.ItemResponse((np.random.default_rng(2).uniform(size=(3, 4)) < 0.5).astype(float)),
        poisson_of(np.zeros(20, dtype=int), np.ones((20, 1))),
    ],
    ids=["counts of 1e9", "20 rows", "3 students", "no event"],
)
def test_small_and_odd_data_end_well(model: tv.models.Model) -> None:
    """Above mean-field; and small steps from there gain nothing."""
    structured, mean_field = fit(model), fit(model, "mean-field")
    assert structured.status == mean_field.status == "converged"
    (above, e1), (below, e2) = last(structured), last(mean_field)
    assert above > below - 4 * math.hypot(e1, e2)
    longer = fit(model, optimizer=tv.NaturalGradient(rate=0.02), n_iterations=150, init=structured)
    elbo, error = last(longer)
    assert abs(elbo - above) < 0.5 + 4 * math.hypot(error, e1)


def test_the_rates_of_large_counts_are_known_to_their_roots() -> None:
    """With 1e9 events in a row, its log rate is `log y +- 1/sqrt(y)` whatever the priors say."""
    model = poisson_model(0, n=40, level=math.log(1e9))
    found, counts, rows = fit(model), model.get_state()["y"], slice(model.layout.n_global, None)
    assert found.status == "converged"
    assert counts.min() > 1e7
    np.testing.assert_allclose((found.location[rows] - np.log(counts)) * np.sqrt(counts), 0, atol=0.3)
    np.testing.assert_allclose(np.sqrt((found.scale.toarray() ** 2).sum(axis=1))[rows], counts**-0.5, rtol=0.2)


POISSONS = st.integers(0, 10**6), st.integers(3, 25), st.integers(1, 3), st.floats(-1, 8)
NORMALS = st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.floats(0, 0.3)
some = functools.partial(settings, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@misfit_allowed
@given(*POISSONS)
@some(max_examples=4)
def test_structured_ends_no_lower_than_mean_field_on_poisson_models(seed: int, n: int, p: int, level: float) -> None:
    assert_above_mean_field(poisson_model(seed, n, p, level))


@misfit_allowed
@given(*NORMALS)
@some(max_examples=6)
def test_structured_ends_no_lower_than_mean_field_near_gaussians(
    seed: int, n_global: int, n_local: int, local_dim: int, bend: float
) -> None:
    assert_above_mean_field(bent_normal(seed, Layout(n_global, n_local, local_dim), bend))


@pytest.mark.slow
@misfit_allowed
@given(*POISSONS)
@some(max_examples=100)
def test_so_it_does_on_a_hundred_poisson_models(seed: int, n: int, p: int, level: float) -> None:
    assert_above_mean_field(poisson_model(seed, n, p, level))


@pytest.mark.slow
@misfit_allowed
@given(*NORMALS)
@some(max_examples=100)
def test_so_it_does_near_a_hundred_gaussians(
    seed: int, n_global: int, n_local: int, local_dim: int, bend: float
) -> None:
    assert_above_mean_field(bent_normal(seed, Layout(n_global, n_local, local_dim), bend))


def bent_normal(seed: int, layout: Layout, bend: float) -> tv.models.Model:
    """A random Gaussian less `bend * sum log cosh(x)`, in units of its own in each coordinate."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(layout.dim, layout.dim)) / math.sqrt(layout.dim)
    precision, mean = root @ root.T + 0.1 * np.eye(layout.dim), random.normal(scale=3, size=layout.dim)
    units = 10.0 ** random.uniform(-3, 3, size=layout.dim)

    def log_density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = points / units
        r = x - mean
        slope = -r @ precision
        value = 0.5 * (slope * r).sum(axis=1) - bend * np.logaddexp(x, -x).sum(axis=1)
        return value, (slope - bend * np.tanh(x)) / units

    return tv.models.LogDensity(log_density, layout)


def assert_above_mean_field(model: tv.models.Model) -> None:
    structured, mean_field = fit(model), fit(model, "mean-field")
    (above, e1), (below, e2) = last(structured), last(mean_field)
    assert structured.status == mean_field.status == "converged"
    assert above > below - 0.1 - 4 * math.hypot(e1, e2)


def test_globals_correlated_in_many_directions_do_not_swing_for_ever() -> None:
    """All coordinates stepping at once overshoot where many are correlated; that start never rose, nor fell back."""
    rng = np.random.default_rng(7)
    root, scales = rng.normal(size=(60, 60)), 10 ** rng.uniform(-3, 3, 60)
    covariance = (root @ root.T / 60 + 1e-4 * np.eye(60)) * np.outer(scales, scales)
    sd = np.sqrt(np.diag(covariance))
    target = GaussianTarget(2 * sd * rng.normal(size=60), np.linalg.inv(covariance), Layout(60, 0, 0))
    found = fit(target.model, n_iterations=1500)
    assert found.status == "converged"
    assert last(found)[0] == pytest.approx(0, abs=0.1)  # the density is normalized, and the family holds it
    np.testing.assert_allclose(found.location, target.mean, atol=0.05 * sd.max(), rtol=0)
    np.testing.assert_array_less(abs(found.location - target.mean), 0.05 * sd)


# ---- densities without an answer ----------------------------------------------------------------------------
def holes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value, slope = -0.5 * (points**2).sum(axis=1), -points
    value[points[:, 0] > 1] = np.nan
    slope[points[:, 0] > 1] = np.nan
    return value, slope


def cliff(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value, slope = -0.5 * (points**2).sum(axis=1), -points
    value[points[:, 0] > 1] = -np.inf
    return value, slope


@pytest.mark.parametrize(
    "function",
    [
        holes,
        cliff,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        lambda x: (x.sum(axis=1), np.ones_like(x)),
        lambda x: (0.5 * (x**2).sum(axis=1), x),
        lambda x: ((x**4).sum(axis=1), 4 * x**3),
    ],
    ids=["NaN", "-inf", "flat", "slope", "square", "fourth power"],
)
@pytest.mark.parametrize("family", ["mean-field", "structured"])
def test_what_has_no_optimum_never_converges(function: Any, family: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tv.ConvergenceWarning)
        found = fit(tv.models.LogDensity(function, LAYOUT), family, n_iterations=300)
    assert found.status in ("diverged", "completed")
    assert np.isfinite(found.params).all()
    assert found.n_updates <= 300
    assert found.elbo["iteration"].iloc[-1] == found.n_updates


def test_a_density_without_an_end_is_told_from_one_with_a_hole() -> None:
    with pytest.warns(tv.ConvergenceWarning, match="integral is infinite: see that every variable has a prior"):
        fit(tv.models.LogDensity(lambda x: (0.5 * (x**2).sum(axis=1), x), Layout(1, 0, 0)))
    with pytest.warns(tv.ConvergenceWarning) as caught:
        fit(tv.models.LogDensity(holes, LAYOUT))
    assert not any("infinite" in str(one.message) for one in caught)


def test_a_run_that_leaves_where_it_cannot_go_comes_back() -> None:
    """NaN from 12 standard deviations on: nothing of the posterior, but first steps may get there."""

    def walled(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = -0.5 * ((points - 50) ** 2).sum(axis=1), 50 - points
        slope[points[:, 0] > 62] = np.nan
        return value, slope

    found = fit(tv.models.LogDensity(walled, LAYOUT))
    assert found.status == "converged"
    np.testing.assert_allclose(found.location, 50, atol=0.2)
    assert last(found)[0] == pytest.approx(2.5 * math.log(2 * math.pi), abs=0.1)


def far_modes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halves of N(-30, 1) and N(30, 1) in all coordinates together, normalized."""
    half = 0.5 * points.shape[1] * math.log(2 * math.pi)
    parts = np.stack([-0.5 * ((points - place) ** 2).sum(axis=1) - half for place in (-30, 30)])
    total = np.logaddexp(*parts)
    shares = np.exp(parts - total)[:, :, None]
    return total - math.log(2), shares[0] * (-30 - points) + shares[1] * (30 - points)


@pytest.mark.parametrize(
    ("layout", "family"),
    [
        (Layout(1, 0, 0), "structured"),
        (Layout(4, 0, 0), "full-rank"),
        (Layout(1, 3, 1), "full-rank"),
        (Layout(2, 3, 2), "structured"),
    ],
    ids=str,
)
def test_a_fit_between_two_far_modes_ends_in_one(layout: Layout, family: str) -> None:
    """Its steps are as wide as the modes are apart, where they began: an ELBO of -1e86 was once what came of them."""
    model = tv.models.LogDensity(far_modes, layout)
    start = float(far_modes(np.zeros((1, layout.dim)))[0][0]) - layout.dim  # about the ELBO of N(0, 0.01)
    for seed in range(2):
        found = fit(model, family, seed=seed)
        assert found.status == "converged"
        assert last(found)[0] == pytest.approx(-math.log(2), abs=0.05)  # the KL divergence of one of two halves
        np.testing.assert_allclose(abs(found.location), 30, atol=0.2)
        for n in (30, 100):
            short = fit(model, family, seed=seed, n_iterations=n)
            assert last(short)[0] > 2 * start


def test_a_budget_that_ends_in_a_bad_stretch_returns_the_best_before_it(tmp_path: Path) -> None:
    """From some call on, slopes lead away by steps that no trust region bears."""
    calls, bad_from = [0], [10**9]

    def treacherous(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls[0] += 1
        slopes = -(points - 1)
        return -0.5 * ((points - 1) ** 2).sum(axis=1), -1e3 * slopes if calls[0] > bad_from[0] else slopes

    model = tv.models.LogDensity(treacherous, Layout(2, 0, 0))
    calls[0] = 0
    good = fit(model, "mean-field", n_iterations=20)
    per_update = (calls[0] - 2) // 20
    bad_from[0], calls[0] = 20 * per_update + 1, 0
    with pytest.warns(tv.ConvergenceWarning, match="25 updates made .* led astray, and the best parameters before"):
        found = fit(model, "mean-field", n_iterations=25)
    assert (found.status, found.n_updates) == ("completed", 25)
    assert last(found)[0] > last(good)[0] - 1
    found.save(tmp_path / "fit.npz")
    for one in (found, tv.load_fit(tmp_path / "fit.npz", model=model)):
        assert one.astray
        assert [words.count("init=fit") for words in one.diagnose().reasons if "25 updates" in words] == [1]


def test_a_density_without_an_end_is_told_also_where_the_budget_was_chosen() -> None:
    with pytest.warns(
        tv.ConvergenceWarning, match=r"200 updates made .*; its parameters have run to .* has a prior\.$"
    ):
        found = fit(tv.models.LogDensity(lambda x: (0.5 * (x**2).sum(axis=1), x), Layout(1, 0, 0)), n_iterations=200)
    assert found.status == "completed"


# ---- where a run stops --------------------------------------------------------------------------------------
def stop_at(n: int) -> Any:
    return lambda iteration, elbo: iteration >= n


@functools.cache
def whole_run(family: str, **changes: Any) -> tv.Fit:
    return fit(poisson_model(3), family, **changes)


@pytest.mark.parametrize(
    ("family", "place"),
    [
        *(("structured", place) for place in ("start", "second start", "climb", "averaging", "end")),
        ("markov", "averaging"),
        ("full-rank", "second start"),
    ],
)
def test_a_run_stopped_by_the_callback_goes_on_to_the_same_bits(tmp_path: Path, place: str, family: str) -> None:
    whole = whole_run(family)
    total = whole.n_updates
    n = {"start": 12, "second start": 28, "climb": total // 2, "averaging": total - 10, "end": total}[place]
    path = tmp_path / "run.npz"
    part = fit(poisson_model(3), family, checkpoint=path, callback=stop_at(n))
    assert part.family.name == family
    if place != "end":
        assert part.status == "interrupted"
        assert "stopped by the callback" in part.message
    assert part.n_updates == min(total, part.n_updates)
    assert_same_run(fit(poisson_model(3), family, checkpoint=path), whole)
    assert_same_run(fit(poisson_model(3), family, checkpoint=path), whole)  # a run that has ended ends again


@pytest.mark.parametrize(("form", "dtype"), [(True, "float64"), (False, "float32")], ids=["standardized", "raw"])
def test_a_budget_that_ends_within_a_leg_can_be_raised(tmp_path: Path, form: bool, dtype: str) -> None:
    family, path = Structured(standardized=form), tmp_path / "run.npz"
    whole = fit(poisson_model(3), family, dtype=dtype)
    for n in (3, 13, 28, 29, 43):
        part = fit(poisson_model(3), family, checkpoint=path, n_iterations=n, dtype=dtype)
        assert (part.status, part.n_updates) == ("completed", n)
        assert part.family == family
        alone = fit(poisson_model(3), family, n_iterations=n, dtype=dtype)
        assert_same_run(part, alone)
    assert_same_run(fit(poisson_model(3), family, checkpoint=path, dtype=dtype), whole)


@pytest.mark.parametrize(("share", "every"), [(0.1, None), (0.3, 7), (0.5, None), (0.65, 7)])
def test_ctrl_c_within_a_leg_leaves_no_trace_after_resuming(tmp_path: Path, share: float, every: int | None) -> None:
    calls, stop = [0], [math.inf]

    def counted(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls[0] += 1
        if calls[0] == stop[0]:
            request_interrupt()
        return eight_schools(points)

    model = tv.models.LogDensity(counted, Layout(2, 8, 1))
    calls[0] = 0
    whole = fit(model, elbo_every=every)
    stop[0], calls[0] = int(share * calls[0]), 0
    path = tmp_path / "run.npz"
    part = fit(model, elbo_every=every, checkpoint=path)
    assert (part.status, part.family.name) == ("interrupted", "structured")
    assert "stopped by Ctrl-C" in part.message
    assert_same_run(fit(model, elbo_every=every, checkpoint=path), whole)


class Failing:
    """The eight schools, of which one call raises."""

    def __init__(self) -> None:
        self.calls, self.fails_at = 0, -1
        self.model = tv.models.LogDensity(self, Layout(2, 8, 1))

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise ZeroDivisionError("in the user's code")
        return eight_schools(points)


@pytest.mark.parametrize("share", [0.15, 0.4, 0.6, 0.7])
def test_an_exception_in_the_middle_carries_the_fit_so_far_and_leaves_no_trace(tmp_path: Path, share: float) -> None:
    failing, path = Failing(), tmp_path / "run.npz"
    failing.calls = 0
    whole = fit(failing.model)
    failing.fails_at, failing.calls = int(share * failing.calls), 0
    with pytest.raises(ZeroDivisionError, match="in the user's code") as caught:
        fit(failing.model, checkpoint=path)
    partial = caught.value.partial_fit  # type: ignore[attr-defined]
    assert (partial.status, partial.family.name) == ("interrupted", "structured")
    assert 0 <= partial.n_updates < whole.n_updates
    assert partial.params.shape == whole.params.shape
    assert f"ZeroDivisionError after {partial.n_updates} updates" in partial.message
    assert_same_run(fit(failing.model, checkpoint=path), whole)


@pytest.mark.parametrize(("n", "every"), [(1, 7), (4, None), (6, 7)])
def test_an_exception_in_the_callback_leaves_no_trace(tmp_path: Path, n: int, every: int | None) -> None:
    calls = []

    def callback(iteration: int, elbo: float) -> None:
        calls.append(iteration)
        if len(calls) == n:
            raise ZeroDivisionError

    path = tmp_path / "run.npz"
    with pytest.raises(ZeroDivisionError) as caught:
        fit(SCHOOLS, elbo_every=every, checkpoint=path, callback=callback)
    assert caught.value.partial_fit.n_updates == calls[-1]  # type: ignore[attr-defined]
    assert_same_run(fit(SCHOOLS, elbo_every=every, checkpoint=path), whole_schools(every))


@pytest.mark.parametrize("family", ["structured", "full-rank"])
def test_an_early_end_in_the_mean_field_start_is_of_the_family_that_was_asked_for(family: str) -> None:
    found = fit(SCHOOLS, family, n_iterations=4)
    assert (found.status, found.n_updates, found.family.name) == ("completed", 4, family)
    assert "4 updates made without converging" in found.message
    assert np.count_nonzero(found.scale.toarray() - np.diag(found.scale.diagonal())) == 0
    mean_field = fit(SCHOOLS, "mean-field", n_iterations=4)
    np.testing.assert_array_equal(found.location, mean_field.location)
    np.testing.assert_allclose(found.scale.toarray(), mean_field.scale.toarray(), rtol=1e-12)


# ---- arguments ----------------------------------------------------------------------------------------------
def test_the_same_seed_gives_the_same_numbers_on_any_number_of_threads() -> None:
    first = fit(SCHOOLS, seed=4, n_threads=1)
    assert_same_run(fit(SCHOOLS, seed=4, n_threads=3), first)
    assert not np.array_equal(fit(SCHOOLS, seed=5).params, first.params)
    model = poisson_model(0, n=400)
    assert_same_run(fit(model, n_threads=4, n_iterations=40), fit(model, n_threads=1, n_iterations=40))


def test_a_fit_goes_on_from_those_of_smaller_families() -> None:
    target = hierarchical_normal()
    found = fit(target.model, "mean-field")
    for family in ("structured", "markov", "full-rank"):
        found = fit(target.model, family, init=found)
        assert found.status == "converged"
        assert last(found)[0] == pytest.approx(0, abs=0.05)
    again = fit(target.model, "full-rank", init=found)
    assert abs(last(again)[0] - last(found)[0]) < 0.05


def test_given_noise_is_walked_through_at_one_rate() -> None:
    """Against the update by hand: the rows are the draws, without pairs."""
    target = hierarchical_normal(1, 2, 1)
    noise = np.random.default_rng(0).normal(size=(30, 4, 3))
    model, rate = target.model, 0.05
    found = fit(
        model, "full-rank", tv.NaturalGradient(rate=rate, momentum=0.0), n_iterations=30, n_samples=4, noise=noise
    )
    assert (found.status, found.n_updates) == ("completed", 30)
    m, c = np.zeros(3), 0.1 * np.eye(3)
    for u in noise:
        h = model.gradient(u @ c.T + m) @ c + u
        k = np.tril(h.T @ u / 4) / (1 + np.eye(3))
        a, k = rate * h.mean(axis=0), rate * k
        size = math.sqrt(a @ a + (k * k).sum())
        a, k = (2.0 / max(size, 2.0) * step for step in (a, k))
        m, c = m + c @ a, c @ (np.eye(3) + k + 0.5 * k @ k)
    np.testing.assert_allclose(found.location, m, rtol=1e-9)
    np.testing.assert_allclose(found.scale.toarray(), c, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("every", [1, 20, 10_000])
def test_the_trace_is_paid_for_where_it_is_asked_for(every: int) -> None:
    """Each row is what a run of that length ends with; the numbers of the fit do not change."""
    found, free = fit(SCHOOLS, elbo_every=every), whole_schools()
    np.testing.assert_array_equal(found.params, free.params)
    np.testing.assert_array_equal(found.elbo[TRACE].iloc[-1], free.elbo[TRACE].iloc[-1])
    assert (len(found.elbo) == 1) == (every == 10_000)
    assert np.all(np.diff(found.elbo["iteration"]) > 0)


def test_the_free_trace_is_an_estimate_of_the_elbo() -> None:
    """On the way of a mean-field run, by the closed form at the parameters of each leg's beginning and end."""
    target = hierarchical_normal()
    rows, bound = [], MeanField().bind(target.layout)
    for n in range(0, 31, 5):
        found = fit(target.model, "mean-field", n_iterations=max(n, 1), n_samples=64)
        m, c = found.location, found.scale.toarray()
        trace = np.trace(c.T @ target.precision @ c) + (m - target.mean) @ target.precision @ (m - target.mean)
        log_det = 0.5 * np.linalg.slogdet(target.precision)[1] + np.log(np.abs(np.diag(c))).sum()
        rows.append(0.5 * len(m) + log_det - 0.5 * trace)
    free = found.elbo.iloc[:-1]
    assert bound.n_params == found.params.size
    for row, before, after in zip(free.itertuples(), rows, rows[1:], strict=False):
        assert min(before, after) - 6 * row.std_error < row.elbo < max(before, after) + 6 * row.std_error


def test_float32_ends_where_float64_does() -> None:
    target = hierarchical_normal()
    found = fit(target.model, dtype="float32")
    assert found.status == "converged"
    assert last(found)[0] == pytest.approx(0, abs=0.05)
    assert found.params.dtype == np.float64
    np.testing.assert_array_equal(found.params, found.params.astype(np.float32))


def test_a_fit_is_read_again_as_it_was(tmp_path: Path) -> None:
    found = whole_run("structured")
    found.save(tmp_path / "fit.npz")
    again = tv.load_fit(tmp_path / "fit.npz")
    assert_same_run(again, found)
    assert again.spec == found.spec
    assert again.message == found.message
    assert again.spec.optimizer == tv.NaturalGradient().config()


# ---- files --------------------------------------------------------------------------------------------------
def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    natural, adam = tmp_path / "natural.npz", tmp_path / "adam.npz"
    usual = {"n_iterations": 10, "n_samples": 8, "elbo_every": 5}
    fit(SCHOOLS, checkpoint=natural, **usual)
    fit(SCHOOLS, optimizer=tv.Adam(1e-3), checkpoint=adam, **usual)
    for path, optimizer in ((natural, tv.Adam(1e-3)), (adam, None), (natural, tv.NaturalGradient(rate=0.1))):
        before = path.read_bytes()
        with pytest.raises(InputError, match=r"belongs to another fit .*optimizer was"):
            fit(SCHOOLS, optimizer=optimizer, checkpoint=path, **usual)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda header, arrays: header.update(scalars={}),
        lambda header, arrays: header["scalars"].pop("count"),
        lambda header, arrays: header["scalars"].update(plan_stage=7.0),
        lambda header, arrays: header["scalars"].update(plan_stage=math.nan),
        lambda header, arrays: arrays.update(history=arrays["history"][:-1]),
        lambda header, arrays: arrays.update(leg=np.ones(3)),
        lambda header, arrays: arrays.update({name: np.ones(4) for name in ("params", "velocity", "mark", "best")}),
        lambda header, arrays: arrays.pop("best"),
    ],
)
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "run.npz"
    fit(SCHOOLS, n_iterations=33, checkpoint=path)
    header, arrays = read_archive(path, "checkpoint", "checkpoint", [], [])
    damage(header, arrays)
    write_archive(path, header, arrays)
    with pytest.raises(OutputError, match=r"checkpoint: .*run\.npz' is damaged"):
        fit(SCHOOLS, checkpoint=path)


def test_a_checkpoint_of_a_version_that_decides_otherwise_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    fit(SCHOOLS, n_iterations=33, checkpoint=path)
    header, arrays = read_archive(path, "checkpoint", "checkpoint", [], [])
    header["scalars"].pop("plan_quickened")  # as versions before momentum had it
    write_archive(path, header, arrays)
    with pytest.raises(InputError, match=r"run\.npz' was begun by another version .* Give another path to start anew"):
        fit(SCHOOLS, checkpoint=path)


@pytest.mark.slow
def test_200_000_locals_end_where_their_integral_says() -> None:
    """`y_n ~ N(x_n, 1)`, `x_n ~ N(mu, tau)`: with so many rows, mu and log tau are normal about their estimates."""
    n = 200_000
    rng = np.random.default_rng(0)
    y = 3 + 2 * rng.normal(size=n) + rng.normal(size=n)

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mu, log_tau, x = points[:, :1], points[:, 1], points[:, 2:]
        pull = (x - mu) * np.exp(-2 * log_tau)[:, None]
        squares = ((x - mu) * pull).sum(axis=1)
        values = -0.5 * squares - n * log_tau - 0.5 * ((y - x) ** 2).sum(axis=1)
        return values, np.column_stack([pull.sum(axis=1), squares - n, y - x - pull])

    found = fit(tv.models.LogDensity(density, Layout(2, n, 1)))
    assert found.status == "converged"
    variance = y.var()
    sds = [math.sqrt(variance / n), variance / (variance - 1) / math.sqrt(2 * n)]
    off = (found.location[:2] - [y.mean(), 0.5 * math.log(variance - 1)]) / sds
    np.testing.assert_allclose(off, 0, atol=0.3)
    np.testing.assert_allclose(found.global_sds, sds, rtol=0.1)
