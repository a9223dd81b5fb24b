"""`fit()`: checks everything, picks the engine, runs it and returns a Fit."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pyturingvi.diagnosis.best_start import best_of_starts
from pyturingvi.diagnosis.draws import elbo_at
from pyturingvi.diagnosis.problems import convergence_problems
from pyturingvi.diagnosis.shape import coarse_problems, shape_problems
from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import ConvergenceWarning, InputError, RefineWarning
from pyturingvi.families import BoundFamily, Family, FamilyName, Structured, get_family
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.loop import StopWithin
from pyturingvi.optimize.memory import check_limit, check_memory
from pyturingvi.optimize.monitor import RunMonitor
from pyturingvi.optimize.rules import Rule
from pyturingvi.optimize.schedules import Schedule
from pyturingvi.result import Fit
from pyturingvi.settings import BY_STEPSIZE, Device, Engine, FitSpec, Settings, finite_array, model_digest
from pyturingvi.support.archive import digest
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.array_namespace import Dtype
from pyturingvi.support.files import check_writable
from pyturingvi.support.registry import defines


def fit(
    model: Model,
    family: FamilyName | Family | None = None,
    optimizer: Rule | None = None,
    *,
    stepsize: float | Schedule | None = None,
    n_iterations: int | None = None,
    n_samples: int | None = None,
    elbo_every: int | None = None,
    elbo_samples: int = 1024,
    init_location: Any = 0.0,
    init_scale: Any = 0.1,
    seed: int = 0,
    engine: Engine = "auto",
    device: Device = "cpu",
    dtype: Dtype = "float64",
    progress: bool = True,
    noise: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    init: Any = None,
    callback: Callable[[int, float], Any] | None = None,
    max_memory: float | None = None,
    averaging: PolynomialAveraging | None = None,
    n_threads: int | None = None,
    stop_within: float | None = None,
    refine: bool = False,
) -> Fit:
    """Fit a variational family to a model by stochastic maximization of the ELBO.

    Without further arguments it runs natural gradients until the ELBO rises no more, and averages their noise out. With
    `optimizer=tv.Adam(...)` or its like the defaults are the paper's protocol for real data (section 4.2): 50,000
    updates, M = 8 samples a gradient, start at N(0, 0.1^2 I), ELBO from 1,024 samples every 100 updates.

    Parameters
    ----------
    model : Model
        One of `tv.models`, or what `tv.load_problem` gave.
    family : {"mean-field", "structured", "markov", "full-rank"} or Family, optional
        By default the model's own: "markov" for stochastic volatility, else "structured". Where all else is left to
        `fit` too, it then runs from each start that the model asks for, and keeps the highest ELBO (`Fit.starts`).
    optimizer : Rule, optional
        `tv.NaturalGradient()` (default), or `tv.Adam`, `tv.SGD`, `tv.ProximalSGD`, `tv.ProjectedSGD`, with a number or
        `tv.step_decay(...)` for the stepsize, or a rule of your own: what is passed is what runs, never its parent.
    stepsize : float or schedule, optional
        Alone, it means Adam with this stepsize and 20,000 updates, as on the command line; beside an optimizer that
        has one it takes its place.
    n_iterations : int, optional
        Number of updates. NaturalGradient makes this many at most, or 20,000, and ends when it has converged.
    n_samples : int, optional
        Monte Carlo samples M in each gradient; NaturalGradient chooses it.
    elbo_every, elbo_samples : int, optional
        The ELBO is estimated from `elbo_samples` draws every `elbo_every` updates, and after the last one. The trace
        of NaturalGradient rests on the draws of its updates instead, which costs nothing, unless `elbo_every` is given.
    init_location : float or (d,) array
    init_scale : float or (d,) array
        Start: location, and `C = init_scale * I`, or its diagonal.
    seed : int
        The same seed gives the same numbers again on the same engine and device.
    engine : {"auto", "numpy", "julia"}
    device : {"cpu", "cuda"}
    dtype : {"float64", "float32"}
    progress : bool
        Show a progress bar with updates per second and the current ELBO.
    noise : (n_iterations, M, D) array, optional
        Base draws u to use in place of the generator; D is d in the bundled families.
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
    stop_within : float, optional
        End after the first update whose parameters lie within this squared distance of the optimum, for experiments
        on a model that knows it (paper, section 4.1); `Fit.arrived` tells whether it came to that.

    refine : bool
        Correct the globals afterwards, with the locals integrated out: see `Fit.refine`. Refused before any work where
        the model's locals are not independent given the globals.

    Returns
    -------
    Fit
        Its `status` is "converged" (nothing more to gain that shows), "completed" (the number of updates is used up),
        "interrupted" (Ctrl-C or callback) or "diverged" (the gradient or the last ELBO is not finite; the last finite
        parameters are kept).

    Warns
    -----
    ConvergenceWarning
        Where the fit diverged, ended below its start, had not converged when updates ran out whose number you did not
        choose, had gone astray when they ran out whoever chose it, or the model advises to change its data; or where
        the density has another shape than the fit: globals that would move by much with the locals integrated out.
        `Fit.diagnose` looks closer.
    RefineWarning
        Where `Fit.refine` would move globals by more than half of their standard deviations, or change these by 1.3.

    Raises
    ------
    InputError, MemoryLimitError, OutputError, EngineError
        Before any work, for an argument that cannot be used.
    Exception
        What your callback or log density raised in the middle; what was fitted so far is its `partial_fit`.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models or come from tv.load_problem, got {type(model).__name__!r}.")
    if not isinstance(getattr(model, "layout", None), Layout):
        raise InputError(f"{model.description} needs `layout = tv.Layout(n_global, n_local, local_dim)` in its class.")
    if not isinstance(refine, bool):
        raise InputError(f"refine must be True or False, got {refine!r}.")
    alone = stepsize is not None and optimizer is None
    settings = Settings.of(
        family=default_family(model, engine) if family is None else family,
        optimizer=optimizer,
        stepsize=stepsize,
        n_iterations=BY_STEPSIZE if alone and n_iterations is None else n_iterations,
        n_samples=n_samples,
        elbo_every=elbo_every,
        elbo_samples=elbo_samples,
        init_location=init_location,
        init_scale=init_scale,
        seed=seed,
        engine=engine,
        device=device,
        dtype=dtype,
        averaging=averaging,
        stop_within=stop_within,
    )
    if refine:
        from pyturingvi.refine.refine import check_refinable  # with much that no other fit needs

        check_refinable(model, settings.family)
    told = model.advice()
    for advice in told:  # before the work: a run on such data may be long, and end nowhere
        warnings.warn(f"{model.label}: {advice}", ConvergenceWarning, stacklevel=2)
    found = run(
        model,
        settings,
        progress=progress,
        noise=noise,
        checkpoint=checkpoint,
        init=init,
        callback=callback,
        max_memory=max_memory,
        n_threads=n_threads,
        budget_chosen=n_iterations is not None,
        several_starts=family is None,
        check_shape=not refine,  # its weights tell more
    )
    held = found.starts.words if refine and found.starts is not None else None  # the posterior may hold them all
    for problem in found.warnings:
        if problem not in told and problem != held:
            warnings.warn(f"{model.label}: {problem}", ConvergenceWarning, stacklevel=2)
    for advice in found.advice:
        warnings.warn(f"{model.label}: {advice}", RefineWarning, stacklevel=2)
    if refine:
        found = refined(found, progress=progress)
    if held in found.warnings:
        warnings.warn(f"{model.label}: {held}", ConvergenceWarning, stacklevel=2)
    return found


def refined(fit: Fit, *, progress: bool) -> Fit:
    """The fit refined, with its own warnings kept; itself where it diverged or was interrupted, before or now."""
    if fit.status in ("diverged", "interrupted"):
        return fit
    try:
        found = fit.refine(seed=fit.spec.seed, progress=progress)
    except KeyboardInterrupt:
        fit.status = "interrupted"
        fit.message += "; refining was interrupted, so that the globals are the fit's own"
        return fit
    old, new = fit.starts, found.starts
    moot = old.words if old is not None and new is not None and not new.disagree else None
    found.warnings = [words for words in fit.warnings if words != moot] + found.warnings
    return found


def run(
    model: Model,
    settings: Settings,
    *,
    progress: bool = False,
    noise: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    init: Any = None,
    callback: Callable[[int, float], Any] | None = None,
    max_memory: float | None = None,
    n_threads: int | None = None,
    budget_chosen: bool = True,
    several_starts: bool = False,
    check_shape: bool = True,
) -> Fit:
    """`fit` with its settings as one object; the other arguments, and the errors, are those of `fit`.

    It warns of nothing: what `fit` would warn of is in `Fit.warnings`. budget_chosen: the number of updates was meant.
    several_starts: run from the model's other starts too, where start and number of updates are left to it.
    check_shape: see whether the family holds the density of a fit that has converged.
    """
    check_limit(max_memory)
    n_threads = None if n_threads is None else whole_number("n_threads", n_threads, 1)
    if callback is not None and not callable(callback):
        raise InputError(f"callback must be a function of (iteration, elbo), got {callback!r}.")
    family, device = settings.family, settings.device
    runner = select_engine(model, settings, n_threads)
    runner.check_device(device)
    path = None if checkpoint is None else check_writable(checkpoint, "checkpoint")
    needed = settings.fit_bytes(model.layout, checkpoint=path is not None)
    draws = None if noise is None else finite_array("noise", noise)
    if draws is not None and device == "cpu":
        needed += draws.nbytes
    check_memory(needed, max_memory, device, family, model.layout, runner.device_memory(device), settings.elbo_samples)
    bound = family.bind(model.layout)
    if not isinstance(bound, BoundFamily):
        raise InputError(f"family: {type(family).__name__}.bind must return a BoundFamily, got {bound!r}.")
    if settings.optimizer.ends_by_itself:
        if not defines(bound, "natural_coordinates"):
            raise InputError(
                f"optimizer: the {family.name} family has no natural-gradient steps; pass one, optimizer=tv.Adam(1e-3)."
            )
        bound.natural_coordinates()  # refuses a base distribution that bears no such steps
    if draws is not None:
        if settings.n_iterations is None or settings.n_samples is None:
            raise InputError("noise: give n_iterations and n_samples beside it, which its shape must have.")
        wanted = (settings.n_iterations, settings.n_samples, bound.noise_dim)
        if draws.shape != wanted:
            raise InputError(f"noise must have shape (n_iterations, n_samples, d) = {wanted}, got {draws.shape}.")
        draws = draws.copy()  # a callback may change the user's array while the fit runs
    optimum = settings.check_optimum(model)
    target = None
    if optimum is not None and settings.stop_within is not None:
        target = StopWithin(bound.initial_flat(*optimum), settings.stop_within)
    initial, start = _initial(model, bound, settings, init)
    if np.shape(initial) != (bound.n_params,):
        raise InputError(f"family: a start has shape {np.shape(initial)}, but n_params says {bound.n_params!r}.")
    ceiling = _check_start(model, bound, initial)
    del bound  # its index arrays would lie beside the engine's
    described = {**settings.describe(), "engine": runner.name}
    spec = FitSpec(
        model=model.label,
        model_digest=model_digest(model),
        init=start,
        noise=None if draws is None else digest(draws),
        **described,
    )
    monitor = RunMonitor(spec.to_json(), progress, callback, path)
    if settings.engine == "auto" and progress:
        _note(
            f"{model.label}, d={model.dim:,}: using the {runner.name} engine on {device}, and the {family.label} "
            f"family of {family.n_params(model.layout):,} parameters"
        )
    try:
        outcome = runner.run(model, settings, initial, draws, monitor, target)
    except Exception as error:
        if monitor.partial is not None:
            error.partial_fit = Fit(model, family, spec, monitor.partial, monitor.rows, monitor.seconds)  # type: ignore[attr-defined]
            error.add_note(f"The fit so far ({monitor.partial.n_updates} updates) is this exception's `partial_fit`.")
        raise
    found = Fit(model, family, spec, outcome, monitor.rows, monitor.seconds)
    below = monitor.rows and not monitor.rows[-1][1] > ceiling
    found.warnings = convergence_problems(
        outcome.status,
        outcome.message,
        monitor.rows,
        elbo_at(model, family, initial, settings.seed) if below else None,
        budget_chosen=budget_chosen,
        ends_by_itself=settings.optimizer.ends_by_itself,
        astray=outcome.astray,
        advice=model.advice(),
    )
    if outcome.status == "converged":
        if settings.dtype == "float32":
            found.warnings += coarse_problems(found, settings.seed)
        if check_shape:
            problems, found.advice = shape_problems(found, settings.seed)
            found.warnings += problems
    usual = init is None and noise is None and settings.describe_start() == Settings().describe_start()
    if not several_starts or budget_chosen or not (usual and settings.optimizer.ends_by_itself):
        return found

    def again(name: str, flat: np.ndarray, race: Callable[[int, float], Any]) -> Fit:
        if progress:
            _note(f"again, from the {name} start")
        other = run(
            model,
            replace(settings, engine=runner.name),
            progress=progress,
            init=flat,
            callback=race,
            max_memory=max_memory,
            n_threads=n_threads,
            budget_chosen=False,
            check_shape=check_shape,
        )
        other.spec = replace(other.spec, init={"start": name, **other.spec.init})
        return other

    # each begins anew after a resumed run: the checkpoint is that of the first alone
    return best_of_starts(found, callback, again) if found.status in ("converged", "completed") else found


def _note(words: str) -> None:
    """Say something beside the progress bar; a program without a console has nowhere to."""
    if sys.stderr is not None:
        print(f"pyturingvi: {words}", file=sys.stderr)


def default_family(model: Model, engine: str) -> Family:
    """The model's own family; structured where the engine that is named has no such."""
    family = get_family(model.default_family)
    return family if engine != "julia" or defines(family, "to_julia") else Structured()


def _initial(model: Model, bound: BoundFamily, settings: Settings, init: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Flat starting parameters and their description for the spec."""
    if init is None:
        location = settings.check_location(model.dim)
        return bound.initial_flat(location, settings.check_scale(model.dim)), settings.describe_start()
    if isinstance(init, Fit):
        if init.model.layout != model.layout:
            raise InputError(f"init: the given fit has {init.model.layout}, this model {model.layout}.")
        flat = bound.embed(init.family.bind(model.layout), init.params)
    else:
        if isinstance(init, str | os.PathLike):
            raise InputError(f"init must be a Fit, not the path of one: init=tv.load_fit({str(init)!r}) reads it.")
        flat = finite_array("init", init).copy()
        if flat.shape != (bound.n_params,):
            raise InputError(
                f"init must be a Fit or a flat parameter vector of shape ({bound.n_params},) for the "
                f"{bound.family.label} family, got shape {flat.shape}."
            )
    bound.check_flat(flat)
    return flat, {"params": digest(flat)}


def _check_start(model: Model, bound: BoundFamily, initial: np.ndarray) -> float:
    """The density and its gradient must be finite where the run starts.

    Returns the ELBO that the start would have if the density were nowhere lower than at its location.
    """
    location = bound.location(initial)[None, :]
    with np.errstate(all="ignore"):
        value, slope = model.log_density_and_gradient(location)
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise InputError(
            f"{model.label}: the log density is {float(value[0])} at the starting location and its gradient has "
            f"{int((~np.isfinite(slope)).sum())} non-finite entries; choose another init_location."
        )
    return float(value[0]) + bound.entropy(bound.from_flat(initial))
