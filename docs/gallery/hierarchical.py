"""Gallery: groups with effects of their own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from entries import Entry, standard, table
from numpyro import deterministic, plate, sample

import pyturingvi as tv

# ---- eight schools: effects of coaching, measured with known errors -------------------------------------------------
SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools_centred(y: Any, sigma: Any) -> None:
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5))
    with plate("school", len(y)):
        theta = sample("theta", dist.Normal(mu, tau))
        sample("y", dist.Normal(theta, sigma), obs=y)


def schools_noncentred(y: Any, sigma: Any) -> None:
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5))
    with plate("school", len(y)):
        e = sample("e", dist.Normal(0, 1))
        theta = deterministic("theta", mu + tau * e)
        sample("y", dist.Normal(theta, sigma), obs=y)


# ---- baseball: 18 players' first 45 times at bat --------------------------------------------------------------------
def baseball(hits: Any) -> None:
    mean = sample("mean", dist.Uniform(0, 1))
    size = sample("size", dist.Pareto(1.0, 1.5))
    with plate("player", len(hits)):
        p = sample("p", dist.Beta(mean * size, (1 - mean) * size))
        sample("hits", dist.Binomial(45, p), obs=hits)


def baseball_model() -> Any:
    hits = table("pscl", "EfronMorris")["r"].to_numpy()
    return tv.models.NumPyro(baseball, (hits,))


# ---- UCB admissions: a coin for each department and sex -------------------------------------------------------------
def admissions(department: Any, male: Any, applied: Any, admitted: Any) -> None:
    mean, by_sex = sample("mean", dist.Normal(0, 2)), sample("by_sex", dist.Normal(0, 1))
    sd = sample("sd", dist.HalfNormal(1))
    with plate("department", 6):
        level = sample("level", dist.Normal(mean, sd))
    sample("admitted", dist.Binomial(applied, logits=level[department] + by_sex * male), obs=admitted)


def admissions_model() -> Any:
    counts = table("datasets", "UCBAdmissions").pivot_table("Freq", ["Dept", "Gender"], "Admit", aggfunc="sum")
    frame = counts.reset_index()
    applied = (frame["Admitted"] + frame["Rejected"]).to_numpy()
    male = (frame["Gender"] == "Male").to_numpy(dtype=float)
    return tv.models.NumPyro(admissions, (pd.factorize(frame["Dept"])[0], male, applied, frame["Admitted"].to_numpy()))


# ---- surgical: deaths of babies in 12 hospitals ---------------------------------------------------------------------
def surgical(n: Any, deaths: Any) -> None:
    mean, sd = sample("mean", dist.Normal(-3, 2)), sample("sd", dist.HalfNormal(1))
    with plate("hospital", len(n)):
        level = sample("level", dist.Normal(mean, sd))
        sample("deaths", dist.Binomial(n, logits=level), obs=deaths)


def surgical_model() -> Any:
    n = np.array([47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360])
    return tv.models.NumPyro(surgical, (n, np.array([0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24])))


# ---- seeds: germination on 21 plates, with an effect of the plate ---------------------------------------------------
def seeds(kind: Any, root: Any, n: Any, germinated: Any) -> None:
    b = sample("b", dist.Normal(0, 2).expand([4]).to_event(1))
    sd = sample("sd", dist.HalfNormal(1))
    with plate("dish", len(n)):
        e = sample("e", dist.Normal(0, sd))
        logits = b[0] + b[1] * kind + b[2] * root + b[3] * kind * root + e
        sample("germinated", dist.Binomial(n, logits=logits), obs=germinated)


def seeds_model() -> Any:
    frame = table("aod", "orob2")
    kind, root = (pd.factorize(frame[name])[0].astype(float) for name in ("seed", "root"))
    return tv.models.NumPyro(seeds, (kind, root, frame["n"].to_numpy(), frame["y"].to_numpy()))


# ---- epilepsy: seizures of 59 patients in four periods --------------------------------------------------------------
def epilepsy(patient: Any, X: Any, y: Any) -> None:
    b = sample("b", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    sd_patient, sd_visit = sample("sd_patient", dist.HalfNormal(1)), sample("sd_visit", dist.HalfNormal(1))
    with plate("patient", 59):
        level = sample("level", dist.Normal(0, sd_patient))
        with plate("period", 4):
            e = sample("e", dist.Normal(0, sd_visit))
    rate = (X @ b).reshape(59, 4).T + level + e
    sample("y", dist.Poisson(jnp.exp(rate)).to_event(2), obs=y.reshape(59, 4).T)


def epilepsy_model() -> Any:
    frame = table("MASS", "epil").sort_values(["subject", "period"])
    drug = (frame["trt"] == "progabide").to_numpy(dtype=float)
    base, age = np.log(frame["base"] / 4), np.log(frame["age"])
    X = np.column_stack([np.ones(236), base - base.mean(), drug, drug * (base - base.mean()), age - age.mean()])
    return tv.models.NumPyro(epilepsy, (frame["subject"].to_numpy() - 1, X, frame["y"].to_numpy()))


# ---- litters: a share of survivors of its own for each --------------------------------------------------------------
def litters(group: Any, n: Any, y: Any) -> None:
    mean = sample("mean", dist.Beta(1, 1).expand([2]).to_event(1))
    size = sample("size", dist.Pareto(1.0, 1.5).expand([2]).to_event(1))
    with plate("litter", len(n)):
        p = sample("p", dist.Beta((mean * size)[group], ((1 - mean) * size)[group]))
        sample("y", dist.Binomial(n, p), obs=y)


def litters_model() -> Any:
    frame = table("aod", "rats")
    return tv.models.NumPyro(litters, (pd.factorize(frame["group"])[0], frame["n"].to_numpy(), frame["y"].to_numpy()))


# ---- rats: weights of 16 rats over 64 days, each on a line of its own -----------------------------------------------
def growth(rat: Any, day: Any, y: Any) -> None:
    mean = sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    sd = sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    noise = sample("noise", dist.HalfNormal(1))
    with plate("rat", 16):
        line = sample("line", dist.Normal(mean, sd).to_event(1))
    sample("y", dist.Normal(line[rat, 0] + line[rat, 1] * day, noise).to_event(1), obs=y)


def growth_model() -> Any:
    frame = table("nlme", "BodyWeight")
    return tv.models.NumPyro(
        growth, (pd.factorize(frame["Rat"])[0], standard(frame["Time"]), standard(frame["weight"]))
    )


# ---- orange trees: three numbers of a growth curve for each of 5 ----------------------------------------------------
def orange(tree: Any, age: Any, y: Any) -> None:
    mean = sample("mean", dist.Normal(jnp.array([0.6, 0.6, -1.0]), 1.0).to_event(1))
    sd = sample("sd", dist.HalfNormal(0.5).expand([3]).to_event(1))
    noise = sample("noise", dist.HalfNormal(0.5))
    with plate("tree", 5):
        curve = sample("curve", dist.Normal(mean, sd).to_event(1))  # logs of: size, days to the middle, days of growth
    size, middle, width = jnp.exp(curve[tree]).T
    sample("y", dist.Normal(size / (1 + jnp.exp((middle - age) / width)), noise).to_event(1), obs=y)


def orange_model() -> Any:
    frame = table("datasets", "Orange")
    age, size = frame["age"].to_numpy() / 1000, frame["circumference"].to_numpy() / 100
    return tv.models.NumPyro(orange, (pd.factorize(frame["Tree"])[0], age, size))


# ---- kidney: times to infection, two of each patient, some cut short ------------------------------------------------
def kidney(patient: Any, X: Any, days: Any, infected: Any) -> None:
    b = sample("b", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    scale, shape = sample("scale", dist.Normal(4, 2)), sample("shape", dist.LogNormal(0, 0.5))
    sd = sample("sd", dist.HalfNormal(1))
    with plate("patient", 38):
        frailty = sample("frailty", dist.Normal(0, sd))
    log_rate = -shape * (scale - X @ b - frailty[patient])
    log_hazard = jnp.log(shape) + (shape - 1) * jnp.log(days) + log_rate
    numpyro.factor("times", (infected * log_hazard - jnp.exp(log_rate) * days**shape).sum())


def kidney_model() -> Any:
    frame = table("survival", "kidney")
    X = np.column_stack([standard(frame["age"]), frame["sex"] - 1.0, pd.get_dummies(frame["disease"]).iloc[:, 1:]])
    days, infected = frame["time"].to_numpy(dtype=float), frame["status"].to_numpy(dtype=float)
    return tv.models.NumPyro(kidney, (frame["id"].to_numpy() - 1, X.astype(float), days, infected))


# ---- rugby: strengths of attack and of defence of six teams ---------------------------------------------------------
def rugby(home: Any, away: Any, points_home: Any, points_away: Any) -> None:
    level, at_home = sample("level", dist.Normal(3, 1)), sample("at_home", dist.Normal(0, 1))
    sd = sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    with plate("team", 6):
        attack = sample("attack", dist.Normal(0, sd[0]))
        defence = sample("defence", dist.Normal(0, sd[1]))
    a, d = attack - attack.mean(), defence - defence.mean()
    sample("home", dist.Poisson(jnp.exp(level + at_home + a[home] + d[away])).to_event(1), obs=points_home)
    sample("away", dist.Poisson(jnp.exp(level + a[away] + d[home])).to_event(1), obs=points_away)


def rugby_model() -> Any:
    rng = np.random.default_rng(0)
    pairs = np.array([(i, j) for _ in range(4) for i in range(6) for j in range(6) if i != j])
    a, d = rng.normal(0, 0.3, 6), rng.normal(0, 0.3, 6)
    points = [rng.poisson(np.exp(3 + home + a[i] + d[j])) for i, j, home in ((*pairs.T, 0.2), (*pairs.T[::-1], 0.0))]
    return tv.models.NumPyro(rugby, (*pairs.T, *points))


# ---- pumps: failures of ten pumps, gradient by hand -----------------------------------------------------------------
PUMPS = (
    np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22.0]),
    np.array([94.3, 15.7, 62.9, 126, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5]),
)


def pumps_model() -> Any:
    """log rate_i ~ N(mu, sd^2) with mu ~ N(0, 4), sd ~ half-N(0, 1); failures_i ~ Poisson(rate_i time_i)."""
    failures, time = PUMPS

    def density(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        mu, sd, x = v["mu"][:, None], v["sd"][:, None], v["log_rate"]
        r, expected = (x - mu) / sd, np.exp(x) * time
        log_p = (failures * x - expected - 0.5 * r**2 - np.log(sd)).sum(1) - v["mu"] ** 2 / 8 - v["sd"] ** 2 / 2
        slopes = {"mu": (r / sd).sum(1) - v["mu"] / 4, "sd": ((r**2 - 1) / sd).sum(1) - v["sd"]}
        return log_p, {**slopes, "log_rate": failures - expected - r / sd}

    real, positive = tv.transforms.Real(), tv.transforms.Positive()
    return tv.models.LogDensity(
        density,
        tv.Layout(2, 10, 1),
        constrain={"mu": real, "sd": positive, "log_rate": real},
        dims={"log_rate": ["pump"]},
    )


ENTRIES = [
    Entry("eight schools, centred", "NumPyro", "getting started", "its 8 rows",
          lambda: tv.models.NumPyro(schools_centred, SCHOOLS)),
    Entry("eight schools, non-centred", "posteriordb", "eight_schools_noncentered", "its 8 rows",
          lambda: tv.models.NumPyro(schools_noncentred, SCHOOLS)),
    Entry("baseball", "NumPyro", "baseball", "pscl EfronMorris", baseball_model),
    Entry("admissions", "NumPyro", "ucbadmit", "datasets UCBAdmissions", admissions_model),
    Entry("surgical", "Stan", "BUGS vol. 1: surgical", "its 12 rows", surgical_model),
    Entry("seeds", "Stan", "BUGS vol. 1: seeds", "aod orob2", seeds_model),
    Entry("epilepsy", "Stan", "BUGS vol. 1: epil", "MASS epil", epilepsy_model),
    Entry("litters", "PyMC", "hierarchical binomial model: rat tumours", "aod rats", litters_model),
    Entry("growth of rats", "Stan", "BUGS vol. 1: rats", "nlme BodyWeight", growth_model),
    Entry("orange trees", "Stan", "BUGS vol. 2: orange trees", "datasets Orange", orange_model),
    Entry("kidney", "Stan", "BUGS vol. 1: kidney", "survival kidney", kidney_model),
    Entry("rugby", "PyMC", "a hierarchical model for rugby prediction", "simulated", rugby_model),
    Entry("pumps", "Stan", "BUGS vol. 1: pumps", "its 10 rows", pumps_model),
]  # fmt: skip
