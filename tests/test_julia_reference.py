"""The numpy engine against values recorded from real Julia runs (`julia_reference/record.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyturingvi as tv
from pyturingvi.comparisons.recorded import FAMILIES, RULES, RecordedReference, recorded_kinds


@pytest.mark.parametrize("kind", recorded_kinds())
def test_log_density_and_gradient_equal_julias(kind: str) -> None:
    record = RecordedReference(kind)
    points, expected, slopes = record.points()
    value, gradient = record.model().log_density_and_gradient(points)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-10 * abs(slopes).max())


def test_the_record_says_what_it_was_made_with() -> None:
    about = RecordedReference("gaussian").about
    assert tuple(int(part) for part in about["julia"].split(".")[:2]) >= (1, 10)
    assert about["zygote"]
    assert about["date"]


def recorded() -> list[Any]:
    """Every family of every model, by each optimizer in turn; the other half is slow."""
    found = []
    for i, kind in enumerate(recorded_kinds()):
        for j, family in enumerate(FAMILIES):
            for k, rule in enumerate(RULES.values()):
                marks = [] if (i + j + k) % len(RULES) == 0 else [pytest.mark.slow]
                found.append(pytest.param(kind, family, rule.name, marks=marks))
    return found


@pytest.mark.parametrize(("kind", "family", "rule"), recorded())
def test_the_same_noise_leads_to_julias_parameters_after_200_updates(kind: str, family: str, rule: str) -> None:
    record = RecordedReference(kind)
    path = record.path(FAMILIES[family], rule)
    assert path is not None
    assert path.noise.shape[0] == 200
    fit = tv.fit(
        record.model(),
        path.family,
        path.rule,
        n_iterations=200,
        n_samples=path.noise.shape[1],
        noise=path.noise,
        elbo_every=50,
        elbo_samples=512,
        engine="numpy",
        progress=False,
    )
    assert fit.status == "completed"
    np.testing.assert_allclose(fit.params, path.params, rtol=0, atol=1e-8)
    assert (path.elbo is not None) == (rule == "adam")
    if path.elbo is not None:  # the draws behind an ELBO are each engine's own
        iterations, elbo, error = path.elbo.T
        np.testing.assert_array_equal(fit.elbo["iteration"], iterations)
        assert (abs(fit.elbo["elbo"] - elbo) < 4 * np.hypot(fit.elbo["std_error"], error)).all()
