"""A user's own Turing model: its layout and density, its data, what is refused, and fits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from model_checks import (
    assert_batches_are_independent,
    assert_gradient_is_the_slope,
    assert_round_trip,
    assert_survives_pickle_and_state,
    unit_directions,
)
from scipy import stats
from turing_sources import CENTRED, LINE, LINE_DATA, SCHOOLS, turing_model, varying_data

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError
from pyturingvi.models.turing_data import _RESERVED, julia_name, read_data, suspicious_data
from pyturingvi.settings import model_digest

julia = pytest.mark.julia
KINDS = ["centred", "non-centred", "varying"]


def points_for(model: tv.models.Model, n: int = 4) -> np.ndarray:
    return 0.7 * np.random.default_rng(12).normal(size=(n, model.dim))


# ---- layout, names and values -----------------------------------------------------------------------------
@julia
def test_eight_schools_by_hand() -> None:
    model = turing_model("centred")
    assert model.layout == tv.Layout(2, 8, 1)
    assert model.label == "eight_schools"
    assert model.global_labels == ["mu", "linked tau"]
    points = points_for(model)
    mu, tau, theta = points[:, 0], np.exp(points[:, 1]), points[:, 2:]
    y, sigma = np.array(SCHOOLS["y"]), np.array(SCHOOLS["sigma"])
    expected = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, 0, 5) + np.log(tau)
    expected += stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1)
    expected += stats.norm.logpdf(y, theta, sigma).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    natural = model.constrain(points)
    assert list(natural) == ["mu", "tau", "theta"]
    for name, value in {"mu": mu, "tau": tau, "theta": theta}.items():
        np.testing.assert_allclose(natural[name], value)


@julia
def test_what_the_model_derives_comes_back_too() -> None:
    model = turing_model("non-centred")
    natural = model.constrain(points_for(model))
    assert list(natural) == ["mu", "tau", "eta", "theta"]
    expected = natural["mu"][:, None] + natural["tau"][:, None] * natural["eta"]
    np.testing.assert_allclose(natural["theta"], expected)
    assert model.global_names == ["mu", "tau"]
    assert model.dims["theta"] == ["theta_dim_0"]


@julia
def test_two_locals_of_different_shapes_share_their_blocks() -> None:
    model = turing_model("varying")
    assert model.layout == tv.Layout(3, 4, 3)
    points = points_for(model)
    natural = model.constrain(points)
    blocks = points[:, 3:].reshape(-1, 4, 3)
    np.testing.assert_allclose(natural["level"], blocks[:, :, 0])
    np.testing.assert_allclose(natural["slopes"], blocks[:, :, 1:].transpose(0, 2, 1))
    assert model.dims["slopes"] == ["slopes_dim_0", "local"]
    assert model.coords["local"] == [1, 2, 3, 4]
    data = varying_data()
    rows = data["group"] - 1
    mean = natural["level"][:, rows] + (data["X"].T * natural["slopes"][:, :, rows]).sum(axis=1)
    spread, noise = natural["spread"], natural["noise"]
    expected = -spread.sum(axis=1) - noise + points[:, :3].sum(axis=1)
    expected += stats.norm.logpdf(natural["level"]).sum(axis=1)
    expected += stats.norm.logpdf(natural["slopes"], 0, spread[:, :, None]).sum(axis=(1, 2))
    expected += stats.norm.logpdf(data["y"], mean, noise[:, None]).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)


@julia
@pytest.mark.parametrize("which", KINDS)
def test_gradients_batches_and_round_trips(which: str) -> None:
    model = turing_model(which)
    points = points_for(model)
    assert_gradient_is_the_slope(model, points, unit_directions(model, 5, 13))
    assert_batches_are_independent(model, points)
    natural = model.constrain(points)
    np.testing.assert_allclose(model.unconstrain(natural), points, rtol=1e-10, atol=1e-11)
    if which != "non-centred":  # what := sets stands in dims too, which the check does not expect of a variable
        assert_round_trip(model, points)


@julia
def test_float32_points_are_computed_in_float64() -> None:
    model = turing_model("centred")
    points = points_for(model).astype(np.float32)
    density, gradient = model.log_density_and_gradient(points)
    assert (density.dtype, gradient.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(density, model.log_density(points.astype(float)), rtol=1e-14)


@julia
@pytest.mark.parametrize(
    "ad",
    [
        "forwarddiff",
        "reversediff",
        "compiled_reversediff",
        "mooncake",
        pytest.param("zygote", marks=pytest.mark.slow),  # more than a minute of compilation
    ],
)
def test_every_backend_gives_the_same_gradient(ad: str) -> None:
    model = turing_model("line", ad)  # in whole vectors, as Zygote needs it
    assert model.ad == ad
    points = points_for(model)
    m, e, y = points[:, 0], points[:, 1:], np.array(LINE_DATA["y"])
    expected = np.column_stack([(e - m[:, None]).sum(axis=1) - m / 4, m[:, None] - e + y - e])
    np.testing.assert_allclose(model.gradient(points), expected, rtol=1e-12, atol=1e-12)


PULLED = """
@model function pulled(y, first, second)
    phi ~ Uniform(-1, 1)
    h ~ MvNormal(zeros(length(y)), I)
    @addlogprob! -0.5 * sum(abs2, h[second] .- phi .* h[first])
    y ~ MvNormal(h, I)
end
"""


@julia
def test_a_chain_of_locals_goes_to_the_markov_family() -> None:
    n = np.arange(1, 10)
    model = tv.models.Turing(PULLED, {"y": np.zeros(10), "first": n, "second": n + 1}, local=["h"], ad="forwarddiff")
    assert model.default_family == "markov"
    assert turing_model("line").default_family == "structured"


@julia
def test_locals_that_touch_each_other_are_refused_by_name() -> None:
    data = {"y": np.zeros(10), "first": [2], "second": [9]}
    with pytest.raises(InputError, match=r"Turing: local='h' .* those of (h\[2\] and h\[9\]|h\[9\] and h\[2\]) touch"):
        tv.models.Turing(PULLED, data, local=["h"], ad="forwarddiff")


# ---- data -------------------------------------------------------------------------------------------------
ECHO = """
@model function echo(flag, count, word, words, M, v, table)
    flag === true || error("flag")
    count === 3 || error("count")
    word == "day" || error("word")
    words == ["a", "b"] || error("words")
    size(M) == (2, 3) && M[2, 1] === 3 || error("M")
    v isa Vector{Float64} && v == [0.5, 1.5] || error("v")
    size(table) == (2, 2) && table[1, 2] === 7.0 || error("table")
    m ~ Normal()
end
"""


@julia
def test_data_keep_their_kinds_and_axes() -> None:
    data = {
        "flag": True,
        "count": np.int32(3),
        "word": "day",
        "words": pd.Series(["a", "b"]),
        "M": np.arange(6).reshape(2, 3),
        "v": pd.Series([0.5, 1.5], index=[9, 3]),
        "table": pd.DataFrame({"a": [1.0, 2.0], "b": [7.0, 8.0]}),
    }
    assert tv.models.Turing(ECHO, data).layout == tv.Layout(1, 0, 0)


@julia
def test_a_table_gives_its_columns() -> None:
    table = pd.DataFrame(SCHOOLS)
    model = tv.models.Turing(CENTRED, table, local="theta")
    points = points_for(model)
    np.testing.assert_array_equal(model.log_density(points), turing_model("centred").log_density(points))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([1, 2], "data must be a dictionary"),
        ({"y": None}, "is None"),
        ({"two words": 1}, "no argument of a Julia function"),
        ({"y": [[1], [2, 3]]}, "different lengths"),
        ({"y": [1 + 2j]}, "numbers, booleans or strings"),
        ({"y": [object()]}, "got objects"),
        ({"y": {"a": 1}}, "is a dictionary"),
        ({"y": np.ma.masked_array([1.0, 2.0], [True, False])}, "masked"),
        ({"y": pd.Series([1, None], dtype="Int64")}, "1 missing"),
        ({"y": pd.DataFrame({"a": ["u", "v"]})}, "column 'a' does not hold numbers"),
        ({"y": np.array([2**64 - 1], dtype=np.uint64)}, "too large"),
        ({"y": [["a", "b"]]}, "one word or as a list"),
        ({"y": pd.to_datetime(pd.Series(["2024-01-01"]))}, "dtype datetime64"),
        ({"y": ["a", 1]}, r"data\['y'\] mixes strings and other values, 'a' and 1"),
        ({"y": [1.0, float("nan")]}, r"data\['y'\] holds 1 NaN \(missing\), the first at \[1\]"),
        ({"y": float("nan")}, r"data\['y'\] holds 1 NaN"),
        ({"y": pd.Series([1.0, None])}, r"data\['y'\] holds 1 NaN"),
        ({"y": [1.0, -np.inf, np.inf]}, r"data\['y'\] holds 2 infinite values, the first at \[1\].*isinf"),
        ({"y": float("inf")}, r"data\['y'\] holds 1 infinite values\."),
        ({"y": pd.Series([1.0, None], dtype="Float64")}, r"data\['y'\] has 1 missing"),
        (
            {"y": pd.DataFrame({"a": pd.Series([1.0, None], dtype="Float64")})},
            r"data\['y'\], column 'a', has 1 missing",
        ),
        ({"y": pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])}, r"data\['y'\] has more than one column named 'a'"),
        (pd.DataFrame([[1.0, 2.0]], columns=["y", "y"]), "data has more than one column named 'y'"),
        ({"end": 1.0}, "'end', which no argument of a Julia function can have"),
        ({"function": 1.0}, "'function', which no argument"),
        ({"1y": 1.0}, "'1y', which no argument"),
        ({"": 1.0}, "'', which no argument"),
        ({"y\ud800": 1.0}, "which no argument"),
        ({"e\u0301": 1.0, "\u00e9": 2.0}, "twice; Julia reads both spellings as one"),
        ({"y": "a\ud800"}, r"data\['y'\] is no valid text"),
        ({"y": ["a", "b\ud800"]}, r"data\['y'\] is no valid text"),
    ],
)
def test_data_that_cannot_be_sent_are_refused_before_julia_starts(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.Turing(LINE, data, local=["e"])


def test_plain_values_are_read() -> None:
    found = read_data({"a": np.float32(1.5), "b": [1, 2], "c": [True], "d": np.array(["x"]), "e": np.array("y")})
    assert (found["a"], found["d"], found["e"]) == (1.5, ["x"], "y")
    assert [found[name].dtype.kind for name in "bc"] == ["i", "b"]
    assert read_data({"y": pd.Series([1.0, 2.0], dtype="Float64")})["y"].dtype == np.float64  # type: ignore[union-attr]
    assert list(read_data({"e\u0301": 1, "\u00b5": 2, "y!": 3, "y\u2081": 4})) == ["\u00e9", "\u03bc", "y!", "y\u2081"]


@pytest.mark.parametrize(
    ("line", "value", "words"),
    [
        ("y ~ arraydist(Poisson.(exp.(m)))", [1.0, 2.5, 0.25], "'y'.* 2 numbers that are no whole ones, 2.5 .*Poisson"),
        ("y[i] ~ BinomialLogit(n[i], m)", [0.5], "BinomialLogit is a distribution of counts"),
        ("y .~ NegativeBinomial(2, m)", 1.5, "NegativeBinomial"),
        ("y ~ Poisson(m)", [1.0, 2.0], ""),
        ("y ~ Poisson(m)", [1, 2], ""),
        ("y ~ Normal(m, 1)  # no Poisson", [0.5], ""),
        ("my ~ Poisson(m)", [0.5], ""),
        ("y ~ Poisson(m)", [], "Empty: data"),
    ],
)
def test_data_that_may_be_why_a_model_fails(line: str, value: Any, words: str) -> None:
    found = " ".join(
        suspicious_data(f"@model function f(y)\n    m ~ Normal()\n    {line}\nend", read_data({"y": value}))
    )
    assert re.search(words, found)
    assert (found == "") == (words == "")


@julia
def test_names_are_those_that_julia_reads() -> None:
    """Of names outside ASCII Julia itself judges; Python's spelling of one is Julia's."""
    runtime = tv.start_julia()
    parse = runtime.seval("text -> (name = Meta.parse(text; raise=false); name isa Symbol ? string(name) : nothing)")
    for name in ("e\u0301", "\u00b5", "\u025b", "\u210f", "y\u2081", "x\u0302", "\u2202x", "Do\u00df"):
        assert parse(name) == julia_name(name), name
    for name in _RESERVED:
        assert parse(name) is None, name


@julia
def test_names_outside_ascii_serve_in_any_spelling() -> None:
    source = """
    @model function accents(e\u0301\u2081)
        m\u00e9 ~ MvNormal(zeros(2), I)
        \u00e9\u2081 ~ MvNormal(me\u0301, I)
    end
    """
    model = tv.models.Turing(source, {"\u00e9\u2081": [1.0, 2.0]}, local=["me\u0301"], ad="forwarddiff")
    assert (model.layout, model.local) == (tv.Layout(0, 2, 1), ["m\u00e9"])
    with pytest.raises(InputError, match=r"data has the name .*, which no argument"):
        tv.models.Turing(source, {"\u00e9\u2081": [1.0, 2.0], "\u2192": 1.0})


@julia
def test_a_model_that_skips_nan_itself_may_have_it() -> None:
    body = "for i in eachindex(y)\n isnan(y[i]) || (y[i] ~ Normal(m, 1))\n end"
    model = tv.models.Turing(f"@model function gaps(y)\n m ~ Normal()\n {body}\nend", {"y": [1.0, np.nan, 2.0]})
    expected = stats.norm.logpdf(0.3) + stats.norm.logpdf([1.0, 2.0], 0.3).sum()
    np.testing.assert_allclose(model.log_density(np.array([[0.3]])), expected)


@julia
@pytest.mark.parametrize("test", ["isinf", "isfinite"])
def test_a_model_that_tests_for_infinity_may_have_it(test: str) -> None:
    body = f"{test}(y[2]) == {str(test == 'isinf').lower()} || error()\n y[1] ~ Normal(m, 1)"
    model = tv.models.Turing(f"@model function open(y)\n m ~ Normal()\n {body}\nend", {"y": [1.0, np.inf]})
    expected = stats.norm.logpdf(0.3) + stats.norm.logpdf(1.0, 0.3)
    np.testing.assert_allclose(model.log_density(np.array([[0.3]])), expected)


# ---- models that hold or are held by others ---------------------------------------------------------------
PLAIN = """
@model function plain(n)
    m ~ Normal()
    y ~ filldist(Normal(m, 1), n)
end
"""


@julia
@pytest.mark.parametrize(
    "call",
    ["model = plain(3) | (y=[1.0, 2.0, 4.5],)", "condition(plain(3); y=[1.0, 2.0, 4.5])", "fix(plain(3), (m=0.5,))"],
)
def test_a_model_that_the_source_conditions_or_fixes_is_the_one_that_runs(call: str) -> None:
    model = tv.models.Turing(PLAIN + call, ad="forwarddiff")
    points = points_for(model)
    if "fix" in call:
        assert model.global_names == ["y"]
        expected = stats.norm.logpdf(points, 0.5).sum(axis=1)
    else:
        assert model.global_names == ["m"]
        expected = stats.norm.logpdf(points[:, 0]) + stats.norm.logpdf([1.0, 2.0, 4.5], points).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)


@julia
def test_a_model_inside_another_has_locals_of_its_own() -> None:
    source = """
    @model function inner(n)
        x ~ Normal(0, 2)
        e ~ filldist(Normal(x, 1), n)
        return e
    end
    @model function outer(y)
        a ~ to_submodel(inner(length(y)))
        y ~ MvNormal(a, I)
    end
    """
    model = tv.models.Turing(source, LINE_DATA, local=["a.e"], ad="forwarddiff")
    assert model.layout == tv.Layout(1, 3, 1)
    points = points_for(model)
    np.testing.assert_allclose(model.log_density(points), turing_model("line").log_density(points), rtol=1e-12)
    natural = model.constrain(points)
    assert list(natural) == ["a.x", "a.e"]
    np.testing.assert_allclose(model.unconstrain(natural), points, rtol=1e-12)


@julia
def test_variables_of_every_distribution_can_be_unconstrained() -> None:
    body = (
        "p ~ Dirichlet(3, 1.0)\n q ~ MixtureModel([Normal(-2, 1), Normal(2, 1)], [0.3, 0.7])\n y ~ Normal(q * p[1], 1)"
    )
    model = tv.models.Turing(f"@model function mixed(y)\n {body}\nend", {"y": 1.0}, ad="forwarddiff")
    points = points_for(model)
    np.testing.assert_allclose(model.unconstrain(model.constrain(points)), points, rtol=1e-10, atol=1e-12)


# ---- the choice of a gradient -----------------------------------------------------------------------------
@julia
def test_the_choice_of_a_gradient_is_kept_and_is_no_part_of_what_the_model_is() -> None:
    model = turing_model("line")
    assert model.ad == "forwarddiff"  # of four variables
    state = model.get_state()
    assert (state["ad"], state["ad_chosen"]) == ("", "forwarddiff")
    other = tv.models.Turing.from_state({**state, "ad_chosen": "reversediff"})
    assert other.ad == "reversediff"
    assert model_digest(other) == model_digest(model)  # a fit of it goes on in a process that chose differently
    assert tv.models.Turing.from_state({**state, "ad": "zygote"}).get_state()["ad"] == "zygote"
    assert model_digest(tv.models.Turing.from_state({**state, "ad": "zygote"})) != model_digest(model)
    data = {"data:y_dtype": 1.0, "data:ad_chosen": 2.0}
    digests = {model_digest(tv.models.Turing.from_state({**state, key: value})) for key, value in data.items()}
    assert len({*digests, model_digest(model)}) == 3


@julia
def test_ctrl_c_is_answered_between_the_steps_of_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call = tv.models.Turing._call

    def press(self: tv.models.Turing, function: Any, *args: Any) -> Any:
        calls.append(str(function))
        if "advance_build" in calls[-1]:
            signal.raise_signal(signal.SIGINT)
        return call(self, function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(tv.models.Turing, "_call", press)
        with pytest.raises(KeyboardInterrupt):
            tv.models.Turing(LINE, LINE_DATA, local=["e"], ad="forwarddiff")
    assert sum("advance_build" in name for name in calls) == 1
    assert tv.models.Turing(LINE, LINE_DATA, local=["e"], ad="forwarddiff").ad == "forwarddiff"


# ---- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": 3}, "Julia code as a string"),
        ({"source": "model.jl"}, "not a file's name"),
        ({"source": "f(x) = x"}, "no `@model function`"),
        ({"local": ["e", "e"]}, "twice"),
        ({"local": [1]}, "names of variables"),
        ({"local": None}, r"local must be a list of names of variables, \[\] for none, got None"),
        ({"local": 3}, "local must be a list"),
        ({"local": ["e\ud800"]}, "names of variables"),
        ({"local": ["e\u0301", "\u00e9"]}, "twice"),
        ({"source": LINE + "# \ud800"}, "source is no valid text"),
        ({"ad": "enzyme"}, "Unknown ad 'enzyme'"),
        ({"ad": "forwardiff"}, "Did you mean 'forwarddiff'"),
        ({"name": 3}, "name must be"),
    ],
)
def test_arguments_are_refused_before_julia_starts(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.Turing(**{"source": LINE, "data": LINE_DATA, "local": ["e"], **change})


@pytest.mark.parametrize(
    "code",
    [
        "tv.models.Turing('@model f(y) = (y ~ Normal())', {'y': 1.0})",
        "tv.sample_nuts(tv.models.IsotropicGaussian(2), sampler='turing')",
    ],
)
def test_without_julia_it_says_what_to_do(code: str) -> None:
    # in a process of its own: in this one Julia may be running
    done = subprocess.run([sys.executable, "-c", f"import pyturingvi as tv; {code}"], capture_output=True, text=True)
    assert "EngineError: no Julia environment is set up. `pyturingvi setup`" in done.stderr


def wrong(body: str) -> str:
    return f"@model function wrong(y)\n    m ~ Normal()\n    {body}\n    y ~ MvNormal(fill(m, 3), I)\nend"


@julia
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"local": ["ee"]}, "Unknown local variable 'ee'. Did you mean 'e'.*Known: m, e"),
        ({"local": ["m"]}, '\'?"m" is no array'),
        ({"source": wrong("m ~ Normal((")}, "not Julia code"),
        ({"source": "using NoSuchPackage\n" + LINE}, "does not compile: .*NoSuchPackage"),
        ({"source": wrong('error("my own words")'), "local": []}, r"fails when it is run: my own words \(line 3"),
        ({"source": wrong("q ~ Nrmal()"), "local": []}, "`Nrmal` not defined"),
        ({"source": wrong("k ~ Poisson(3)"), "local": []}, '"k" is discrete'),
        ({"source": wrong("w ~ Dirichlet(3, 1.0)"), "local": ["w"]}, "does not treat them alike"),
        ({"source": wrong("w ~ filldist(Normal(), 2)\n    v ~ filldist(Normal(), 4)"), "local": ["w", "v"]}, "line up"),
        ({"data": {"x": 1.0}}, r'line\(y\): data has no "y"; the model has no argument "x"'),
        ({"name": "lines"}, "no `@model function lines`; it has line"),
        ({"source": wrong("@addlogprob! -Inf"), "local": []}, "not finite at 60 points"),
        (
            {"source": wrong("m += 0").replace("MvNormal(fill(m, 3), I)", "filldist(Poisson(2), 3)"), "local": []},
            r"not finite at 60 points.*'y'.*1 numbers that are no whole ones, 4.5 first.*Poisson",
        ),
        ({"source": 'include("more.jl")\n' + LINE}, r"cannot include files\. Put the file's text before the model"),
        ({"source": wrong('include("more.jl")'), "local": []}, r"cannot include files\. Put the file's text"),
        ({"source": wrong("@submodel line(y)"), "local": []}, r"no more\. Write `x ~ to_submodel\(inner"),
        (
            {"source": PLAIN + "plain(3) | (y=[1.0, 2.0, 4.5],)", "data": {"n": 3}, "local": []},
            "conditions or fixes a model that does not run.*Give the observed values in data.*argument of plain",
        ),
        ({"data": {"y": []}}, r'local variable "e" is empty.*Empty: data\[\'y\'\]'),
        ({"source": f"module Inner\n{LINE}\nend"}, "no `@model function` at its top level"),
        ({"source": "@model function none(y)\n    y ~ MvNormal(zeros(3), I)\nend", "local": []}, "has no variables"),
        (
            {"source": "@model function none(y)\n    x ~ MvNormal(zeros(0), I)\n    y ~ MvNormal(zeros(3), I)\nend"},
            "has no variables",
        ),
        (
            {"source": wrong("m += rand()"), "local": []},
            "log density changes from run to run: at one and the same point",
        ),
        (
            {"source": "const n = Ref(0)\n" + wrong("m += (n[] += 1)"), "local": []},
            "log density changes from run to run",
        ),
        ({"source": wrong("y[1] += 1"), "local": []}, '"wrong" changes its data: "y" is not what it was'),
        ({"source": wrong("sort!(y; rev=true)"), "local": []}, '"wrong" changes its data: "y"'),
        ({"source": wrong("rand() < 0.5 && (b ~ Normal())"), "local": []}, "not the same in every run: b vary"),
        ({"source": wrong("m > 3 && (b ~ Normal())"), "local": []}, "not the same in every run: b vary"),
        ({"source": wrong("b ~ MvNormal(zeros(rand(1:3)), I)"), "local": []}, "not the same in every run: b vary"),
        (
            {"source": wrong("x = zeros(1); x[1] = m"), "local": [], "ad": "forwarddiff"},
            'ad="forwarddiff" cannot differentiate',
        ),
    ],
)
def test_what_julia_refuses_arrives_in_one_message(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"(?s){words}") as caught:
        tv.models.Turing(**{"source": LINE, "data": LINE_DATA, "local": ["e"], **change})
    text = str(caught.value)
    assert "Stacktrace" not in text
    assert len(text) < 1200
    assert text.count("\n") < 10


@julia
def test_a_wrong_gradient_is_refused() -> None:
    body = "m ~ Normal()\n    @addlogprob! m * Turing.ForwardDiff.value(m)\n    y ~ Normal(m, 1)"
    source = f"@model function jump(y)\n    {body}\nend"
    with pytest.raises(InputError, match="wrong gradient"):
        tv.models.Turing(source, {"y": 1.0}, ad="forwarddiff")


@julia
@pytest.mark.parametrize(
    "mean", ["mu > 0 ? mu : 3mu", "mu > 1.5 ? 2mu : mu", "mu < -1.5 ? zero(mu) : mu", "abs(mu)", "max(mu, 0.5)"]
)
def test_a_tape_of_one_branch_is_refused(mean: str) -> None:
    source = f"@model function branch(y)\n mu ~ Normal()\n y ~ Normal({mean}, 1)\nend"
    if mean not in ("abs(mu)", "max(mu, 0.5)"):  # which a tape holds as functions, not as branches
        with pytest.raises(
            InputError, match='compiled_reversediff records one branch of a model; use ad="reversediff"'
        ):
            tv.models.Turing(source, {"y": 1.0}, ad="compiled_reversediff")
        return
    points = np.array([[-1.3], [0.4], [2.0]])
    slopes = tv.models.Turing(source, {"y": 1.0}, ad="compiled_reversediff").gradient(points)
    np.testing.assert_allclose(slopes, tv.models.Turing(source, {"y": 1.0}, ad="forwarddiff").gradient(points))


@julia
def test_branches_at_any_one_of_many_coordinates_are_refused_of_a_tape_and_right_without() -> None:
    body = "x ~ MvNormal(zeros(6), I)\n for i in 1:6\n y ~ Normal(x[i] > 0 ? x[i] : x[i]^2, 1)\n end"
    source = f"@model function many(y)\n {body}\nend"
    with pytest.raises(InputError, match="records one branch"):
        tv.models.Turing(source, {"y": 1.0}, ad="compiled_reversediff")
    x = np.array([[0.5, -0.5, 1.5, -1.5, 2.0, -2.0]])
    expected = -x + np.where(x > 0, 1.0 - x, (1.0 - x**2) * 2 * x)
    for ad in ("reversediff", "forwarddiff"):
        np.testing.assert_allclose(tv.models.Turing(source, {"y": 1.0}, ad=ad).gradient(x), expected, atol=1e-12)


@julia
def test_an_error_in_the_middle_of_a_fit_names_its_place_and_keeps_the_fit_so_far() -> None:
    source = """
    const runs = Ref(typemin(Int))
    @model function late(y)
        (runs[] += 1) > 0 && error("late boom")
        m ~ Normal()
        y ~ Normal(m, 1)
    end
    """
    model = tv.models.Turing(source.replace("typemin(Int)", "-3000"), {"y": 1.0}, ad="forwarddiff")
    settings: dict[str, Any] = {"optimizer": tv.Adam(1e-3), "elbo_every": 50, "elbo_samples": 10, "progress": False}
    with pytest.raises(EngineError, match=r"^late, after \d+ of 100000 updates: .*late boom") as caught:
        tv.fit(model, n_iterations=100_000, **settings)
    partial = caught.value.partial_fit  # type: ignore[attr-defined]
    assert f"after {partial.n_updates} of" in str(caught.value)
    assert partial.n_updates > 50
    # the same parameters as a run that stops there by itself
    whole = tv.fit(tv.models.Turing(source, {"y": 1.0}, ad="forwarddiff"), n_iterations=partial.n_updates, **settings)
    np.testing.assert_array_equal(partial.params, whole.params)


@julia
def test_an_error_far_out_stops_nothing_and_an_error_of_the_user_comes_through() -> None:
    body = 'm > 5 && error("too far for me")\n    y ~ Normal(m, m < -5 ? -1.0 : 1.0)'
    model = tv.models.Turing(f"@model function far(y)\n    m ~ Normal()\n    {body}\nend", {"y": 1.0})
    value, slope = model.log_density_and_gradient(np.array([[0.0], [-6.0]]))
    np.testing.assert_array_equal(np.isfinite(value), [True, False])
    np.testing.assert_array_equal(np.isfinite(slope[:, 0]), [True, False])
    with pytest.raises(EngineError, match="too far for me"):
        model.log_density(np.array([[6.0]]))


@julia
@pytest.mark.parametrize("method", ["log_density", "log_density_and_gradient"])
def test_a_variable_that_appears_far_out_is_told(method: str) -> None:
    body = "m > 6 && (b ~ Normal())\n    y ~ Normal(m, 1)"
    model = tv.models.Turing(
        f"@model function late(y)\n    m ~ Normal()\n    {body}\nend", {"y": 1.0}, ad="forwarddiff"
    )
    with pytest.raises(InputError, match="not the same in every run: at this point it has one more"):
        getattr(model, method)(np.array([[7.0]]))


@julia
def test_the_first_build_of_a_model_says_that_it_compiles(capfd: pytest.CaptureFixture[str]) -> None:
    source = LINE.replace("line", "telling")
    for _ in range(2):
        tv.models.Turing(source, LINE_DATA, local=["e"], ad="forwarddiff")
    assert capfd.readouterr().err.count("pyturingvi: compiling the Turing model 'telling'") == 1


@julia
def test_engine_numpy_is_refused() -> None:
    with pytest.raises(EngineError, match="engine='julia'"):
        tv.fit(turing_model("line"), optimizer=tv.Adam(1e-3), engine="numpy", progress=False)


# ---- fits -------------------------------------------------------------------------------------------------
@julia
@pytest.mark.parametrize("family", ["structured", "full-rank"])
def test_a_fit_of_a_normal_model_finds_its_posterior(family: str) -> None:
    model = turing_model("line")
    settings: dict[str, Any] = {"n_iterations": 6000, "elbo_every": 6000, "elbo_samples": 100_000, "progress": False}
    fit = tv.fit(model, family, tv.Adam(tv.step_decay(0.02, 0.3, every=1500)), **settings)
    assert fit.engine == "julia"
    y = np.array(LINE_DATA["y"])
    precision = np.block([[np.array([[1 / 4 + 3]]), -np.ones((1, 3))], [-np.ones((3, 1)), 2 * np.eye(3)]])
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(fit.location, covariance @ np.concatenate([[0.0], y]), atol=0.03)
    scale = fit.scale.toarray()
    np.testing.assert_allclose(scale @ scale.T, covariance, atol=0.03)
    evidence = stats.multivariate_normal.logpdf(y, np.zeros(3), 2 * np.eye(3) + 4)
    last = fit.elbo.iloc[-1]
    assert last["std_error"] < 0.01
    assert last["elbo"] == pytest.approx(evidence, abs=4 * last["std_error"])


@julia
@pytest.mark.parametrize("family", [tv.MeanField(), tv.Structured(standardized=False)])
def test_other_families_fit_and_the_seed_decides(family: tv.families.Family) -> None:
    settings: dict[str, Any] = {"n_iterations": 200, "elbo_every": 100, "elbo_samples": 64, "progress": False}
    first, second = (tv.fit(turing_model("varying"), family, tv.Adam(0.01), **settings) for _ in range(2))
    np.testing.assert_array_equal(first.params, second.params)
    assert first.elbo["elbo"].iloc[-1] > first.elbo["elbo"].iloc[0]


@julia
def test_a_saved_fit_can_be_loaded_and_used(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_iterations": 20, "elbo_every": 20, "elbo_samples": 8, "progress": False}
    fit = tv.fit(turing_model("varying"), optimizer=tv.Adam(1e-3), **settings)
    loaded = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    assert loaded.model.label == "varying"
    assert loaded.model._inner is None  # Julia is asked when it is needed
    pd.testing.assert_frame_equal(loaded.summary(200), fit.summary(200))
    for name, draws in fit.sample(5).items():
        np.testing.assert_array_equal(loaded.sample(5)[name], draws)


@julia
@pytest.mark.parametrize(
    "which", ["varying", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "varying")]
)
def test_pickle_and_state_keep_the_model(which: str) -> None:
    model = turing_model(which)
    assert_survives_pickle_and_state(model, points_for(model))


@julia
def test_a_checkpoint_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"elbo_every": 50, "elbo_samples": 16, "n_iterations": 100, "progress": False}
    settings |= {"optimizer": tv.Adam(1e-3)}
    straight = tv.fit(turing_model("line"), **settings)
    stopped = tv.fit(turing_model("line"), **settings, checkpoint=tmp_path / "c.npz", callback=lambda *_: True)
    assert stopped.n_updates == 50
    resumed = tv.fit(turing_model("line"), **settings, checkpoint=tmp_path / "c.npz")
    np.testing.assert_array_equal(resumed.params, straight.params)
