"""Gallery: regressions, curves, mixtures and networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from entries import Entry, standard, table
from numpyro import plate, sample

import pyturingvi as tv


# ---- funnel: a variable that is the log scale of others -------------------------------------------------------------
def funnel() -> None:
    y = sample("y", dist.Normal(0, 3))
    with plate("width", 9):
        sample("x", dist.Normal(0, jnp.exp(y / 2)))


# ---- wells: who changes to another well because of arsenic ----------------------------------------------------------
def wells(X: Any, switched: Any) -> None:
    b = sample("b", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    sample("switched", dist.Bernoulli(logits=X @ b).to_event(1), obs=switched)


def wells_model() -> Any:
    frame = table("carData", "Wells")
    X = np.column_stack(
        [np.ones(len(frame)), *(standard(frame[name]) for name in ("arsenic", "distance", "education"))]
    )
    return tv.models.NumPyro(wells, (X, (frame["switch"] == "yes").to_numpy(dtype=float)))


# ---- a line with outliers -------------------------------------------------------------------------------------------
def robust_line(x: Any, y: Any) -> None:
    a, b = sample("a", dist.Normal(0, 10)), sample("b", dist.Normal(0, 10))
    noise, freedom = sample("noise", dist.HalfCauchy(1)), sample("freedom", dist.Gamma(2, 0.1))
    sample("y", dist.StudentT(freedom, a + b * x, noise).to_event(1), obs=y)


def robust_line_model() -> Any:
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 100)
    y = 1 + 2 * x + rng.normal(0, 0.25, 100)
    y[[10, 60, 90]] = [8.0, -4.0, 10.0]
    return tv.models.NumPyro(robust_line, (x, y))


# ---- horseshoe: three of 40 covariates matter -----------------------------------------------------------------------
def horseshoe(X: Any, y: Any) -> None:
    overall = sample("overall", dist.HalfCauchy(0.1))
    noise = sample("noise", dist.HalfNormal(1))
    with plate("covariate", X.shape[1]):
        own = sample("own", dist.HalfCauchy(1))
        z = sample("z", dist.Normal(0, 1))
    sample("y", dist.Normal(X @ (z * own * overall), noise).to_event(1), obs=y)


def horseshoe_model() -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 40))
    return tv.models.NumPyro(horseshoe, (X, X[:, :3] @ [1.0, -1.0, 0.5] + rng.normal(0, 0.5, 100)))


# ---- ordinal: bitterness of wine in five steps ----------------------------------------------------------------------
def ordinal(judge: Any, X: Any, rating: Any) -> None:
    b = sample("b", dist.Normal(0, 2).expand([2]).to_event(1))
    cut = sample("cut", dist.TransformedDistribution(
        dist.Normal(jnp.array([-3.0, -1, 1, 3]), 2).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    sd = sample("sd", dist.HalfNormal(2))
    with plate("judge", 9):
        level = sample("level", dist.Normal(0, sd))
    sample("rating", dist.OrderedLogistic(X @ b + level[judge], cut).to_event(1), obs=rating)


def ordinal_model() -> Any:
    frame = table("ordinal", "wine")
    X = np.column_stack([frame["temp"] == "warm", frame["contact"] == "yes"]).astype(float)
    return tv.models.NumPyro(ordinal, (frame["judge"].to_numpy(int) - 1, X, frame["rating"].to_numpy(int) - 1))


# ---- articles of biochemists, many with none ------------------------------------------------------------------------
def zero_inflated(X: Any, y: Any) -> None:
    b = sample("b", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    empty = sample("empty", dist.Beta(1, 1))
    sample("y", dist.ZeroInflatedPoisson(empty, rate=jnp.exp(X @ b)).to_event(1), obs=y)


def zero_inflated_model() -> Any:
    frame = table("pscl", "bioChemists")
    women, married = frame["fem"] == "Women", frame["mar"] == "Married"
    X = np.column_stack([np.ones(915), women, married, *(standard(frame[name]) for name in ("kid5", "phd", "ment"))])
    return tv.models.NumPyro(zero_inflated, (X.astype(float), frame["art"].to_numpy()))


# ---- a smooth curve with its length found ---------------------------------------------------------------------------
def gaussian_process_model() -> Any:
    frame = table("MASS", "mcycle").iloc[::3]
    x, y = standard(frame["times"]), standard(frame["accel"])
    gap = (x[:, None] - x) ** 2

    def log_density(p: Any) -> Any:
        height, length, noise = jnp.exp(jnp.stack([p["log height"], p["log length"], p["log noise"]]))
        covariance = height**2 * jnp.exp(-0.5 * gap / length**2) + (noise**2 + 1e-6) * jnp.eye(len(x))
        L = jnp.linalg.cholesky(covariance)
        fit = jax.scipy.linalg.solve_triangular(L, y, lower=True)
        prior = sum(-0.5 * p[name] ** 2 for name in p)  # log-normal priors
        return prior - 0.5 * (fit**2).sum() - jnp.log(jnp.diag(L)).sum()

    return tv.models.Jax(log_density, dict.fromkeys(["log height", "log length", "log noise"], 0.0))


# ---- a network with one hidden layer --------------------------------------------------------------------------------
def network(X: Any, y: Any) -> None:
    inner = sample("inner", dist.Normal(0, 1).expand([3, 5]).to_event(2))
    outer = sample("outer", dist.Normal(0, 1).expand([5]).to_event(1))
    noise = sample("noise", dist.HalfNormal(1))
    sample("y", dist.Normal(jnp.tanh(X @ inner) @ outer, noise).to_event(1), obs=y)


def network_model() -> Any:
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 80)
    return tv.models.NumPyro(network, (np.column_stack([np.ones(80), x, x**2]), np.sin(3 * x) + rng.normal(0, 0.1, 80)))


# ---- velocities of 82 galaxies: a mixture of three ------------------------------------------------------------------
def galaxies(y: Any) -> None:
    share = sample("share", dist.Dirichlet(jnp.ones(3)))
    centre = sample("centre", dist.TransformedDistribution(
        dist.Normal(jnp.array([10.0, 20, 30]), 5).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    sd = sample("sd", dist.LogNormal(0, 1).expand([3]).to_event(1))
    parts = dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(centre, sd))
    sample("y", parts.expand([len(y)]).to_event(1), obs=y)


def galaxies_model() -> Any:
    return tv.models.NumPyro(galaxies, (table("MASS", "galaxies").iloc[:, -1].to_numpy(dtype=float) / 1000,))


# ---- compositions: counts of five kinds at 30 places ----------------------------------------------------------------
def compositions(counts: Any) -> None:
    mean = sample("mean", dist.Dirichlet(jnp.ones(5)))
    size = sample("size", dist.LogNormal(2, 1))
    with plate("place", len(counts)):
        share = sample("share", dist.Dirichlet(mean * size))
        sample("counts", dist.Multinomial(50, share), obs=counts)


def compositions_model() -> Any:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.array([0.4, 0.25, 0.2, 0.1, 0.05]) * 10, 30)
    return tv.models.NumPyro(compositions, (np.array([rng.multinomial(50, share) for share in shares]),))


# ---- ratings: 60 people by 40 films, as products of two short vectors -----------------------------------------------
def factors(person: Any, film: Any, rating: Any) -> None:
    noise = sample("noise", dist.HalfNormal(1))
    with plate("person", 60):
        u = sample("u", dist.Normal(0, 1).expand([2]).to_event(1))
    with plate("film", 40):
        v = sample("v", dist.Normal(0, 1).expand([2]).to_event(1))
    sample("rating", dist.Normal((u[person] * v[film]).sum(-1), noise).to_event(1), obs=rating)


def factors_model() -> Any:
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(60, 2)), rng.normal(size=(40, 2))
    cells = rng.choice(2400, 900, replace=False)
    person, film = np.divmod(cells, 40)
    return tv.models.NumPyro(factors, (person, film, (u[person] * v[film]).sum(1) + rng.normal(0, 0.3, 900)))


# ---- refused: a change point that is a whole number, labels of answers, rows in portions ----------------------------
def coal(counts: Any) -> None:
    early, late = sample("early", dist.Exponential(1.0)), sample("late", dist.Exponential(1.0))
    year = sample("year", dist.DiscreteUniform(0, len(counts) - 1))
    sample("counts", dist.Poisson(jnp.where(jnp.arange(len(counts)) < year, early, late)).to_event(1), obs=counts)


def coal_model() -> Any:
    dates = table("boot", "coal")["date"].to_numpy(dtype=float)
    return tv.models.NumPyro(coal, (np.histogram(dates, np.arange(1851, 1964))[0],))


def annotators(answers: Any) -> None:
    share = sample("share", dist.Dirichlet(jnp.ones(2)))
    with plate("judge", answers.shape[1], dim=-2), plate("truth", 2):
        right = sample("right", dist.Beta(2, 1))
    with plate("item", len(answers)):
        label = sample("label", dist.Categorical(share))
        sample("answers", dist.Bernoulli(right[:, label].T).to_event(1), obs=answers)


def annotators_model() -> Any:
    return tv.models.NumPyro(annotators, (np.random.default_rng(0).integers(0, 2, (20, 3)),))


def portions(X: Any, y: Any) -> None:
    b = sample("b", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("row", len(y), subsample_size=50) as rows:
        sample("y", dist.Bernoulli(logits=X[rows] @ b), obs=y[rows])


def portions_model() -> Any:
    X = jnp.asarray(np.random.default_rng(0).normal(size=(500, 3)))
    return tv.models.NumPyro(portions, (X, (X[:, 0] > 0).astype(float)))


ENTRIES = [
    Entry("funnel", "NumPyro", "funnel", "none", lambda: tv.models.NumPyro(funnel)),
    Entry("wells", "posteriordb", "wells_data-wells_dist", "carData Wells", wells_model),
    Entry("line with outliers", "PyMC", "robust linear regression", "simulated", robust_line_model),
    Entry("horseshoe", "NumPyro", "horseshoe_regression", "simulated", horseshoe_model),
    Entry("ordinal", "NumPyro", "ordinal regression", "ordinal wine", ordinal_model),
    Entry("many zeros", "NumPyro", "zero_inflated_poisson", "pscl bioChemists", zero_inflated_model),
    Entry("Gaussian process", "NumPyro", "gp", "MASS mcycle, every third row", gaussian_process_model),
    Entry("neural network", "NumPyro", "bnn", "simulated", network_model),
    Entry("galaxies", "PyMC", "Gaussian mixture model", "MASS galaxies", galaxies_model),
    Entry("compositions", "PyMC", "Dirichlet mixtures of multinomials", "simulated", compositions_model),
    Entry("ratings", "PyMC", "probabilistic matrix factorization", "simulated", factors_model),
    Entry("coal mines", "PyMC", "introductory overview: coal mining disasters", "boot coal", coal_model),
    Entry("annotators", "NumPyro", "annotation", "simulated", annotators_model),
    Entry("rows in portions", "NumPyro", "stochastic variational inference: subsampling", "simulated", portions_model),
]
