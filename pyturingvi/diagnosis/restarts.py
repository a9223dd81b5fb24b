"""The same fit again from other seeds and starts far apart: whether they end at the same place.

From one place all runs climb the same hill. Each variable starts uniformly within 2 of where the fit began, or within
three of the fit's standard deviations where these are more, as chains of a sampler do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import InputError
from pyturingvi.families import BoundFamily, family_from_config
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.monitor import RunMonitor
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.optimize.read_rule import rule_from_config
from pyturingvi.settings import FitSpec, Settings

_REACH, _REACH_SDS, _DRAWS = 2.0, 3.0, 64


@dataclass(frozen=True)
class Restart:
    """One of the further runs: its seed, how it ended, and its flat parameters."""

    seed: int
    status: str
    params: np.ndarray


def settings_of(spec: FitSpec) -> Settings:
    """The settings that a description tells of, or an InputError where it names what is not to be had here."""
    averaging = None if spec.averaging is None else PolynomialAveraging(spec.averaging["eta"])
    location = spec.init.get("location", 0.0)
    scale = spec.init.get("scale", 0.1)
    for what, value in (("location", location), ("scale", scale)):
        if not isinstance(value, int | float):
            raise InputError(
                f"seeds: the fit began at a {what} of its own, which it does not keep; call tv.fit yourself."
            )
    return Settings(
        family=family_from_config(spec.family),
        optimizer=rule_from_config(spec.optimizer),
        n_iterations=spec.n_iterations,
        n_samples=spec.n_samples,
        elbo_every=spec.elbo_every,
        elbo_samples=spec.elbo_samples,
        init_location=location,
        init_scale=scale,
        engine=spec.engine,
        device=spec.device,
        dtype=spec.dtype,
        averaging=averaging,
    )


def dispersed(bound: BoundFamily, flat: np.ndarray, origin: np.ndarray, seed: int) -> np.ndarray:
    """Where a run of this seed starts (d,): around `origin`, as far as the fit with these flat parameters is wide."""
    noise, points = np.empty((_DRAWS, bound.noise_dim)), np.empty((_DRAWS, bound.layout.dim))
    bound.base.fill(generator(np, seed, SAMPLE_STREAM, 12), noise)
    with np.errstate(all="ignore"):  # of a run that has exploded
        bound.transform(bound.from_flat(flat), noise, points)
        width = _REACH_SDS * points.std(axis=0)
    reach = np.where(np.isfinite(width), np.maximum(width, _REACH), _REACH)
    return np.asarray(origin + reach * generator(np, seed, SAMPLE_STREAM, 13).uniform(-1, 1, bound.layout.dim))


def restart(model: Model, spec: FitSpec, flat: np.ndarray, seed: int) -> Restart:
    """Run the fit that a description tells of, and that ended at `flat`, with another seed and start."""
    settings = replace(settings_of(spec), seed=seed)
    bound = settings.family.bind(model.layout)
    origin = settings.check_location(model.dim)
    settings = replace(settings, init_location=dispersed(bound, flat, origin, seed))
    initial = bound.initial_flat(settings.check_location(model.dim), settings.init_scale)
    monitor = RunMonitor({**spec.to_json(), "seed": seed})
    outcome = select_engine(model, settings).run(model, settings, initial, None, monitor)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return Restart(seed, outcome.status, outcome.params)
