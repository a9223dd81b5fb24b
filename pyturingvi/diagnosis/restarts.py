"""The same fit again from other seeds: whether they end at the same place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import InputError
from pyturingvi.families import family_from_config
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.monitor import RunMonitor
from pyturingvi.optimize.rules import rule_from_config
from pyturingvi.settings import FitSpec, Settings


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


def restart(model: Model, spec: FitSpec, seed: int) -> Restart:
    """Run the fit that a description tells of with another seed."""
    settings = replace(settings_of(spec), seed=seed)
    bound = settings.family.bind(model.layout)
    initial = bound.initial_flat(settings.check_location(model.dim), settings.init_scale)
    monitor = RunMonitor({**spec.to_json(), "seed": seed})
    outcome = select_engine(model, settings).run(model, settings, initial, None, monitor)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return Restart(seed, outcome.status, outcome.params)
