"""The script that mypy reads as a user's runs, and refuses when it runs what mypy refuses."""

from __future__ import annotations

import pytest
import typed_script

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.optimize.rules import Adam


def test_the_script_runs() -> None:
    found = typed_script.main()
    assert found["updates"] == 20
    assert found["values"] == 40


def test_what_mypy_refuses_is_refused() -> None:
    mistakes = typed_script.mistakes(typed_script.regression(5))
    assert len(mistakes) == 5
    for mistake in mistakes:
        with pytest.raises(InputError):
            mistake()


def test_a_stepsize_alone_means_adam_and_beside_an_optimizer_its_own() -> None:
    model = typed_script.regression(5)
    quick = {"n_iterations": 3, "progress": False}
    alone = tv.fit(model, stepsize=0.02, **quick)
    assert alone.spec.optimizer == Adam(0.02).config()
    same = tv.fit(model, optimizer=tv.Adam(0.02), **quick)
    assert (alone.params == same.params).all()
    beside = tv.fit(model, optimizer=tv.SGD(1.0), stepsize=1e-4, **quick)
    assert beside.spec.optimizer == tv.SGD(1e-4).config()
    with pytest.raises(InputError, match="NaturalGradient takes none"):
        tv.fit(model, optimizer=tv.NaturalGradient(), stepsize=0.1, **quick)
    fit = tv.fit(model, stepsize=0.02, callback=lambda iteration, elbo: True, progress=False)
    assert fit.spec.n_iterations == 20_000  # as the command line has it
