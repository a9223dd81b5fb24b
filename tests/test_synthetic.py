"""A slice of the synthetic experiment against the published curves (source: reproduce/published/README.md)."""

import numpy as np
import pytest

import pyturingvi as tv
from pyturingvi.reproduce.synthetic import problem


def t_of(found):
    """T as the paper counts it."""
    return found.n_updates - 1 if found.arrived else problem.NOT_REACHED


def test_published_curves_hold_216_finite_points_on_the_stated_stepsize_grid():
    curves = problem.published_curves()
    reached = curves[curves["iterations"] < problem.NOT_REACHED]
    assert len(reached) == 216  # the points that figure 1 shows below its cap, over n = 100, 200 and 300
    grid = problem.stepsizes()
    for (_, _), curve in curves.groupby(["family", "n"]):
        np.testing.assert_allclose(np.sort(curve["stepsize"]), grid, rtol=1e-12)


@pytest.mark.parametrize(
    ("family", "n", "place", "n_seeds"),
    [
        ("mean-field", 100, 12, 3),
        ("mean-field", 200, -2, 3),
        ("structured", 100, -2, 3),
        ("structured", 200, -3, 3),
        pytest.param("full-rank", 100, -2, 1, marks=pytest.mark.slow),  # near its best stepsize
    ],
)
def test_ten_samples_reproduce_the_published_number_of_updates(family, n, place, n_seeds):
    point = problem.finite_points(family, n).iloc[place]
    t = [t_of(problem.proximal_sgd(family, n, point.stepsize, seed=seed)) for seed in range(n_seeds)]
    assert abs(np.mean(t) - point.iterations) <= max(0.03 * point.iterations, 2.0)


def test_the_eight_samples_of_the_text_do_not_reach_the_accuracy_where_the_figure_does():
    point = problem.finite_points("structured", 100).iloc[-1]
    assert point.iterations < 100
    reached = problem.proximal_sgd("structured", 100, point.stepsize, n_samples=8, max_updates=3_000)
    assert not reached.arrived
    ten = problem.proximal_sgd("structured", 100, point.stepsize, n_samples=10, max_updates=3_000)
    assert ten.arrived


def test_a_run_stops_at_the_first_update_within_epsilon_of_the_target():
    model, noise = tv.models.IsotropicGaussian(4), np.random.default_rng(0).standard_normal((400, 10, 17))
    settings = {"family": "structured", "optimizer": tv.ProximalSGD(2e-3), "n_samples": 10, "init_scale": 1.0}
    settings |= {"engine": "numpy", "progress": False, "elbo_samples": 1}
    optimum = tv.theory.isotropic_target(model).optimum("structured")

    def distance(n_updates):
        return (
            (tv.fit(model, noise=noise[:n_updates], n_iterations=n_updates, **settings).params - optimum) ** 2
        ).sum()

    outcome = tv.fit(model, noise=noise, n_iterations=400, stop_within=1.0, **settings)
    assert outcome.arrived
    assert 10 < outcome.n_updates < 400
    # the same noise without the stop: outside one update earlier, inside now
    assert distance(outcome.n_updates) <= 1.0 < distance(outcome.n_updates - 1)
    missed = tv.fit(model, noise=noise, n_iterations=400, stop_within=1e-9, **settings)
    assert (missed.arrived, missed.n_updates, missed.status) == (False, 400, "completed")


def test_a_diverging_stepsize_counts_as_not_reached_and_ends_the_run():
    reached = problem.proximal_sgd("mean-field", 100, 0.5, max_updates=500)
    assert t_of(reached) == problem.NOT_REACHED
    assert reached.status == "diverged"
