"""`fit()`: checks everything, picks the engine, runs it and returns a Fit."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from pyturingvi.engines.base import FitSpec, check_engine_name, digest, model_digest, select_engine
from pyturingvi.errors import InputError, unknown_name
from pyturingvi.families import Family, get_family
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.memory import check_limit, check_memory, fit_bytes
from pyturingvi.optimize.monitor import RunMonitor
from pyturingvi.optimize.rules import Adam, Rule, get_rule
from pyturingvi.result import Fit
from pyturingvi.support.arguments import LARGEST_SEED, real_array, whole_number
from pyturingvi.support.array_namespace import DTYPES
from pyturingvi.support.files import check_writable

DEFAULT_OPTIMIZER = Adam(1e-3)


def fit(
    model: Model,
    family: str | Family = "structured",
    optimizer: Rule = DEFAULT_OPTIMIZER,
    n_iterations: int = 50_000,
    n_samples: int = 8,
    elbo_every: int = 100,
    elbo_samples: int = 1024,
    init_location: Any = 0.0,
    init_scale: float = 0.1,
    seed: int = 0,
    engine: str = "auto",
    device: str = "cpu",
    dtype: str = "float64",
    progress: bool = True,
    noise: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    init: Any = None,
    callback: Callable[[int, float], Any] | None = None,
    max_memory: float | None = None,
    averaging: PolynomialAveraging | None = None,
    n_threads: int | None = None,
) -> Fit:
    """Fit a variational family to a model by stochastic maximization of the ELBO.

    The defaults are the paper's protocol for real data (section 4.2): Adam, M = 8 samples a gradient, start at
    N(0, 0.1^2 I), ELBO from 1,024 samples every 100 updates.

    Parameters
    ----------
    model : Model
        One of `tv.models`, or what `tv.load_problem` gave.
    family : {"mean-field", "structured", "full-rank"} or Family
    optimizer : Rule
        `tv.Adam(1e-3)` (default), `tv.SGD`, `tv.ProximalSGD` or `tv.ProjectedSGD`, with a number or
        `tv.step_decay(...)` for the stepsize.
    n_iterations : int
        Number of updates.
    n_samples : int
        Monte Carlo samples M in each gradient.
    elbo_every, elbo_samples : int
        The ELBO is estimated from `elbo_samples` draws every `elbo_every` updates, and after the last one.
    init_location : float or (d,) array
    init_scale : float
        Start: location, and `C = init_scale * I`.
    seed : int
        The same seed gives the same numbers again on the same engine and device.
    engine : {"auto", "numpy", "julia"}
    device : {"cpu", "cuda"}
    dtype : {"float64", "float32"}
    progress : bool
        Show a progress bar with updates per second and the current ELBO.
    noise : (n_iterations, M, d) array, optional
        Base draws u to use in place of the generator.
    checkpoint : path, optional
        File that keeps the state of the run. If it exists and belongs to this fit, the run goes on from it and
        ends with the numbers of an uninterrupted one.
    init : Fit or flat parameter vector, optional
        Parameters to go on from, instead of `init_location` and `init_scale`. A Fit of a smaller family is
        embedded in the larger one.
    callback : callable, optional
        Called with `(iteration, elbo)` at each ELBO estimate; a true answer ends the run.
    max_memory : float, optional
        Bytes that the fit may use; by default what the machine, or its control group, has free.
    averaging : PolynomialAveraging, optional
        Return a running average of the parameters instead of the last ones.
    n_threads : int, optional
        Threads for large pieces of work; by default the cores this process may use. Results do not depend on it.

    Returns
    -------
    Fit
        Its `status` is "completed", "interrupted" (Ctrl-C or callback) or "diverged" (the gradient or the last
        ELBO is not finite; the last finite parameters are kept).

    Raises
    ------
    InputError, MemoryLimitError, OutputError, EngineError
        Before any work, for an argument that cannot be used.
    Exception
        What your callback or log density raised in the middle; what was fitted so far is its `partial_fit`.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models or come from tv.load_problem, got {type(model).__name__!r}.")
    chosen = get_family(family)
    rule = get_rule(optimizer)
    n_iterations, n_samples, elbo_every, elbo_samples, seed = check_values(
        n_iterations, n_samples, elbo_every, elbo_samples, seed, engine, device, dtype, max_memory
    )
    n_threads = None if n_threads is None else whole_number("n_threads", n_threads, 1)
    if callback is not None and not callable(callback):
        raise InputError(f"callback must be a function of (iteration, elbo), got {callback!r}.")
    if averaging is not None and not isinstance(averaging, PolynomialAveraging):
        raise InputError(f"averaging must be tv.PolynomialAveraging(...) or None, got {averaging!r}.")
    runner = select_engine(engine, model, n_threads, device)
    runner.check_device(device)
    path = None if checkpoint is None else check_writable(checkpoint, "checkpoint")
    needed = fit_bytes(
        chosen,
        model.layout,
        np.dtype(dtype).itemsize,
        rule.n_slots,
        n_samples,
        averaging=averaging is not None,
        checkpoint=path is not None,
        elbo_samples=elbo_samples,
    )
    draws = None if noise is None else _check_noise(noise, n_iterations, n_samples, model.dim)
    if draws is not None and device == "cpu":
        needed += draws.nbytes
    check_memory(needed, max_memory, device, chosen, model.layout, runner.device_memory(device), elbo_samples)
    if draws is not None:
        draws = draws.copy()  # a callback may change the user's array while the fit runs
    initial, described = _initial(model, chosen, init, init_location, init_scale)
    _check_start(model, chosen, initial)
    spec = FitSpec(
        model=model.label,
        model_digest=model_digest(model),
        family=chosen.config(),
        optimizer=rule.config(),
        n_iterations=n_iterations,
        n_samples=n_samples,
        elbo_every=elbo_every,
        elbo_samples=elbo_samples,
        init=described,
        seed=seed,
        engine=runner.name,
        device=device,
        dtype=dtype,
        noise=None if draws is None else digest(draws),
        averaging=None if averaging is None else averaging.config(),
    )
    monitor = RunMonitor(spec, progress, callback, path)
    if engine == "auto" and progress:
        print(f"pyturingvi: using the {runner.name} engine on {device}")
    try:
        outcome = runner.run(model, spec, initial, draws, monitor)
    except Exception as error:
        if monitor.partial is not None:
            error.partial_fit = Fit(model, spec, monitor.partial, monitor.rows, monitor.seconds)  # type: ignore[attr-defined]
            error.add_note(f"The fit so far ({monitor.partial.n_updates} updates) is this exception's `partial_fit`.")
        raise
    return Fit(model, spec, outcome, monitor.rows, monitor.seconds)


def check_values(
    n_iterations: Any,
    n_samples: Any,
    elbo_every: Any,
    elbo_samples: Any,
    seed: Any,
    engine: Any,
    device: Any,
    dtype: Any,
    max_memory: Any,
) -> tuple[int, int, int, int, int]:
    """Check the arguments of `fit` that need no model; the whole numbers among them.

    Raises
    ------
    InputError
        For the first that cannot be used.
    """
    counts = (
        whole_number("n_iterations", n_iterations, 1),
        whole_number("n_samples", n_samples, 1),
        whole_number("elbo_every", elbo_every, 1),
        whole_number("elbo_samples", elbo_samples, 1),
        whole_number("seed", seed, 0, LARGEST_SEED),
    )
    check_engine_name(engine)
    if device not in ("cpu", "cuda"):
        raise InputError(f"Unknown device {device!r}: it must be 'cpu' or 'cuda'.")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    check_limit(max_memory)
    return counts


def _finite_array(name: str, value: Any) -> np.ndarray:
    array = real_array(name, value)
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise InputError(f"{name} holds {count} NaN or infinite values; all must be finite.")
    return array


def _check_noise(noise: Any, n_iterations: int, n_samples: int, dim: int) -> np.ndarray:
    draws = _finite_array("noise", noise)
    if draws.shape != (n_iterations, n_samples, dim):
        raise InputError(
            f"noise must have shape (n_iterations, n_samples, d) = {(n_iterations, n_samples, dim)}, got {draws.shape}."
        )
    return draws


def _initial(
    model: Model, family: Family, init: Any, init_location: Any, init_scale: Any
) -> tuple[np.ndarray, dict[str, Any]]:
    """Flat starting parameters and their description for the spec."""
    bound = family.bind(model.layout)
    if init is None:
        location = _finite_array("init_location", init_location)
        if location.shape not in ((), (model.dim,)):
            raise InputError(f"init_location must be a number or have shape ({model.dim},), got {location.shape}.")
        if isinstance(init_scale, bool | np.bool_) or not isinstance(init_scale, numbers.Real):
            raise InputError(f"init_scale must be a number above 0, got {init_scale!r}.")
        if not (math.isfinite(float(init_scale)) and float(init_scale) > 0):
            raise InputError(f"init_scale must be a finite number above 0, got {init_scale!r}.")
        words = float(location) if location.shape == () else digest(location)
        flat = bound.initial_flat(np.broadcast_to(location, (model.dim,)), float(init_scale))
        return flat, {"location": words, "scale": float(init_scale)}
    if isinstance(init, Fit):
        if init.model.layout != model.layout:
            raise InputError(f"init: the given fit has {init.model.layout}, this model {model.layout}.")
        if init.family.config() == family.config():
            flat = init.params.copy()
        else:
            flat = bound.flat_from_location_scale(init.location, init.scale)
    else:
        if isinstance(init, str | os.PathLike):
            raise InputError(f"init must be a Fit, not the path of one: init=tv.load_fit({str(init)!r}) reads it.")
        flat = _finite_array("init", init).copy()
        if flat.shape != (bound.n_params,):
            raise InputError(
                f"init must be a Fit or a flat parameter vector of shape ({bound.n_params},) for the "
                f"{family.name} family, got shape {flat.shape}."
            )
    if np.any(bound.from_flat(flat)[bound.diagonal] == 0):
        raise InputError("init: a diagonal entry of the scale matrix is 0; the entropy is then infinite.")
    return flat, {"params": digest(flat)}


def _check_start(model: Model, family: Family, initial: np.ndarray) -> None:
    """The density and its gradient must be finite where the run starts."""
    location = family.bind(model.layout).location(initial)[None, :]
    with np.errstate(all="ignore"):
        value, slope = model.log_density_and_gradient(location)
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise InputError(
            f"{model.label}: the log density is {float(value[0])} at the starting location and its gradient has "
            f"{int((~np.isfinite(slope)).sum())} non-finite entries; choose another init_location."
        )
