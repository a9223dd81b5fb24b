"""Stan programs: names, shapes and order of the numbers, the structure found, files, and what is refused."""

import math
import pickle
import sys
from types import ModuleType

import fake_bridgestan
import numpy as np
import pandas as pd
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError
from pyturingvi.layout import Layout
from pyturingvi.models import stan_library

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
DATA = {"J": 8, "y": Y, "sigma": SIGMA}


@pytest.fixture(autouse=True)
def bridgestan(monkeypatch, tmp_path):
    module = ModuleType("bridgestan")
    module.StanModel, module.compile_model = fake_bridgestan.StanModel, fake_bridgestan.compile_model
    monkeypatch.setitem(sys.modules, "bridgestan", module)
    monkeypatch.setattr(stan_library, "user_cache_path", lambda name: tmp_path / "cache")
    return module


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "schools.stan"
    path.write_text(fake_bridgestan.CODE)
    return path


@pytest.fixture
def model(program):
    return tv.models.Stan(
        program, DATA, dims={"theta": ["school"], "b": ["school", "side"]}, coords={"school": list("ABCDEFGH")}
    )


# ---- what it is -----------------------------------------------------------------------------------------------
def test_the_structure_is_found_and_said_in_one_line(program, capsys):
    dims = {"theta": "school", "b": ["school", "side"], "p": ["school", "answer"]}
    model = tv.models.Stan(program, DATA, dims=dims)
    words = "globals: mu, tau, q[2]; 8 local blocks of 5: theta, b, p by school"
    assert model.structure == words
    assert capsys.readouterr().err == f"pyturingvi: schools: {words}\n"
    assert model.layout == Layout(4, 8, 5)
    assert model.default_family == "structured"
    assert repr(model) == f"<tv.models.Stan, a Stan program schools: {words}>"


def test_names_shapes_and_labels_are_the_programs(model):
    assert model.global_labels == ["mu", "log tau", "unconstrained q[0]", "unconstrained q[1]"]
    assert model.global_names == ["mu", "tau", "q", "tau2"]
    assert model.dims == {
        "mu": [],
        "tau": [],
        "q": ["q_dim_0"],
        "tau2": [],
        "theta": ["school"],
        "b": ["school", "side"],
        "p": ["p_dim_0", "p_dim_1"],
        "shifted": ["shifted_dim_0"],
    }
    assert model.coords["school"] == list("ABCDEFGH")


def test_the_log_density_is_that_of_the_program_under_its_own_names(model):
    points = np.random.default_rng(1).normal(size=(5, model.dim))
    values = model.constrain(points)
    assert values["b"].shape == (5, 8, 2)
    assert values["p"].shape == (5, 8, 3)
    np.testing.assert_allclose(values["p"].sum(axis=2), 1.0)
    mu, tau, theta, b = (values[name] for name in ("mu", "tau", "theta", "b"))
    expected = stats.norm(0, 5).logpdf(mu) + stats.cauchy(0, 5).logpdf(tau) + np.log(tau)
    expected += stats.norm(mu[:, None], tau[:, None]).logpdf(theta).sum(axis=1)
    expected += stats.norm(0, 2).logpdf(b).sum(axis=(1, 2))
    expected += stats.norm(theta + b[:, :, 0] - b[:, :, 1], SIGMA).logpdf(Y).sum(axis=1)
    logits = np.log(values["p"][:, :, :2] / values["p"][:, :, 2:]).reshape(5, -1)
    logits = np.column_stack([logits, np.log(values["q"][:, :2] / values["q"][:, 2:])])
    expected += stats.norm.logpdf(logits).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    np.testing.assert_allclose(values["shifted"], theta + mu[:, None], rtol=1e-14)
    np.testing.assert_allclose(values["tau2"], tau**2, rtol=1e-14)


def test_the_gradient_is_the_slope_and_points_come_back(model):
    points, directions = np.random.default_rng(2).normal(size=(2, 3, model.dim))
    assert_gradient_is_the_slope(model, points, directions)
    assert_round_trip(model, np.random.default_rng(3).normal(size=(4, model.dim)))


def test_where_the_program_rejects_a_point_nothing_is_finite(model):
    points = np.zeros((2, model.dim))
    points[1, 1] = 21.0
    value, slope = model.log_density_and_gradient(points)
    assert np.isfinite(value).tolist() == [True, False]
    assert np.isfinite(slope).all(axis=1).tolist() == [True, False]


@pytest.mark.parametrize("kind", ["code", "library", "text path", "json text", "json file", "table"])
def test_program_and_data_in_every_form(kind, program, tmp_path):
    given, data = program, DATA
    if kind == "code":
        given = fake_bridgestan.CODE
    elif kind == "library":
        given = fake_bridgestan.compile_model(program)
    elif kind == "text path":
        given = str(program)
    elif kind == "json text":
        data = '{"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}'
    elif kind == "json file":
        data = tmp_path / "data.json"
        data.write_text('{"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}')
    else:
        table = pd.DataFrame({"y": Y, "sigma": SIGMA})
        data = {"J": np.int64(8), "y": table.y, "sigma": table.sigma}
    point = np.full((1, 44), 0.3)
    assert tv.models.Stan(given, data).log_density(point) == tv.models.Stan(program, DATA).log_density(point)


# ---- fits -----------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*The fit converged, but do not trust it")  # tau, as in all centred schools
def test_a_fit_reads_back_with_its_draws_also_where_the_library_is_gone(model, program, tmp_path):
    fit = tv.fit(model, n_iterations=60, seed=0, progress=False)
    fit.save(tmp_path / "fit.npz")
    fake_bridgestan.compile_model(program).unlink()
    again = tv.load_fit(tmp_path / "fit.npz")
    pd.testing.assert_frame_equal(again.summary(), fit.summary())
    np.testing.assert_array_equal(again.sample(5, seed=1)["b"], fit.sample(5, seed=1)["b"])


def test_a_fit_without_bridgestan_says_what_it_needs(model, tmp_path, monkeypatch):
    tv.fit(model, n_iterations=20, seed=0, progress=False).save(tmp_path / "fit.npz")
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    again = tv.load_fit(tmp_path / "fit.npz")
    assert again.model.structure == model.structure
    with pytest.raises(InputError, match="a draw in the model's own space needs it"):
        again.summary()


def test_a_model_can_be_pickled(model):
    again = pickle.loads(pickle.dumps(model))
    points = np.random.default_rng(4).normal(size=(3, model.dim))
    np.testing.assert_array_equal(again.log_density(points), model.log_density(points))


def test_julia_refuses_a_stan_program(model):
    with pytest.raises(EngineError, match=r"cannot run tv\.models\.Stan, a Stan program; use engine='numpy'"):
        tv.fit(model, engine="julia", progress=False)


# ---- data -----------------------------------------------------------------------------------------------------
def test_generated_quantities_of_the_usual_names_tell_of_the_data(model):
    assert model.observations["y"].values.tolist() == Y.tolist()
    points = np.random.default_rng(5).normal(size=(4000, model.dim)) * 0.3
    values = model.constrain(points)
    mean = values["theta"] + values["b"][:, :, 0] - values["b"][:, :, 1]
    np.testing.assert_allclose(model.log_likelihood(points)["y"], stats.norm(mean, SIGMA).logpdf(Y), rtol=1e-12)
    drawn = model.replicate(points, np.random.default_rng(6))["y"]
    np.testing.assert_array_equal(drawn, model.replicate(points, np.random.default_rng(6))["y"])
    z = (drawn - mean) / SIGMA
    assert abs(z.mean()) < 5 / math.sqrt(z.size)
    assert z.std() == pytest.approx(1.0, abs=5 / math.sqrt(2 * z.size))


def test_a_fit_goes_to_arviz_with_likelihood_and_predictions(model):
    az = pytest.importorskip("arviz_stats")
    tree = tv.fit(model, n_iterations=40, seed=0, progress=False).to_arviz(200)
    assert set(tree.children) >= {"posterior", "log_likelihood", "posterior_predictive", "observed_data"}
    assert tree["log_likelihood"]["y"].shape == (1, 200, 8)
    assert az.loo(tree).n_data_points == 8


def test_refining_is_refused_with_what_to_do_instead(model):
    fit = tv.fit(model, n_iterations=1, seed=0, progress=False)
    words = r"^refine cannot help .*: Stan gives .* as one number, .* In NumPyro, PyMC or JAX .* try fit\.resample\(\)"
    with pytest.raises(InputError, match=words):
        fit.refine()


def test_observed_names_what_the_program_calls_otherwise(program):
    model = tv.models.Stan(program, DATA, observed={"y": ("log_lik", None)})
    assert model.tells_likelihood
    assert not model.tells_replicates
    with pytest.raises(InputError, match="no draw of the data"):
        model.replicate(np.zeros((1, model.dim)), np.random.default_rng(0))
    for observed, words in [
        ("y", "observed must be a dictionary"),
        ({"z": ("log_lik", None)}, "Unknown name of data in observed 'z'"),
        ({"y": "log_lik"}, "two generated quantities"),
        ({"y": ("log_like", None)}, "Did you mean 'log_lik'"),
        ({"y": ("size", None)}, r"'size' has the shape \(\), and 'y' in the data \(8,\)"),
    ]:
        with pytest.raises(InputError, match=words):
            tv.models.Stan(program, DATA, observed=observed)


# ---- refusals -------------------------------------------------------------------------------------------------
def test_the_extra_is_named_where_bridgestan_is_missing(program, monkeypatch):
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(EngineError, match=r"pip install 'pyturingvi\[stan\]'"):
        tv.models.Stan(program, DATA)


@pytest.mark.parametrize(
    ("given", "data", "words"),
    [
        (3, None, "a .stan file or Stan code, got int"),
        ("model.txt", None, "got 'model.txt'"),
        ("nowhere.stan", None, "there is no file nowhere.stan"),
        ("a syntax {", None, r"(?s)cannot be compiled:\nSyntax error in .*Expected"),
        ("model {}", None, "has no parameters"),
        (fake_bridgestan.CODE, {"J": 8}, "variable does not exist; .* name=y"),
        (fake_bridgestan.CODE, [1], "data must be a dictionary, .* got list"),
        (fake_bridgestan.CODE, "data.json", "data.json cannot be read"),
        (fake_bridgestan.CODE, {**DATA, "y": object()}, "cannot be written as JSON"),
        (fake_bridgestan.CODE, {**DATA, "sigma": np.zeros(8)}, "start: Exception: normal_lpdf: Scale parameter is 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(given, data, words):
    with pytest.raises(InputError, match=words):
        tv.models.Stan(given, data)


def test_a_missing_compiler_is_told_from_a_wrong_program():
    with pytest.raises(EngineError, match=r"needs make and a C\+\+17 compiler"):
        tv.models.Stan("compiler {", None)


def test_names_that_do_not_exist_are_refused(program):
    with pytest.raises(InputError, match="thet"):
        tv.models.Stan(program, DATA, local=["thet"])
    with pytest.raises(InputError, match="dims"):
        tv.models.Stan(program, DATA, dims={"thet": ["school"]})
    with pytest.raises(InputError, match="'school' is an axis of 8"):
        tv.models.Stan(program, DATA, dims={"theta": ["school"], "q": ["school"]})
