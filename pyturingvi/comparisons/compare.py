"""`compare()`: the cross-language report, the numpy engine beside Julia on one problem."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyturingvi.comparisons import measures
from pyturingvi.comparisons.measures import Row, Side, rule_words
from pyturingvi.comparisons.plan import ELBO_SAMPLES, Plan, chosen_families, read_rules
from pyturingvi.comparisons.recorded import RecordedReference, recorded_kinds
from pyturingvi.comparisons.result import PARTS, Comparison
from pyturingvi.errors import EngineError, InputError, unknown_name
from pyturingvi.families import Family
from pyturingvi.models.base import Model
from pyturingvi.optimize.rules import Adam, Rule
from pyturingvi.problems import load_problem
from pyturingvi.settings import Settings
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.array_namespace import Dtype

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime

_TIMED_SECONDS = 0.4  # of a timed fit
Step = Callable[..., None]  # shows what is measured next, and how many measurements were done since the last call


def compare(
    model: str | Model,
    families: Sequence[str | Family] = ("mean-field", "structured", "full-rank"),
    *,
    n_points: int = 5,
    n_iterations: int = 200,
    fit_iterations: int | None = None,
    n_runs: int = 5,
    stepsize: float | None = None,
    n_samples: int = 8,
    optimizers: Sequence[str | Rule] = ("adam", "proximal-sgd"),
    dtype: Dtype = "float64",
    seed: int = 0,
    n_threads: int = 1,
    reference: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    simulated: bool = False,
    variant: str = "paper",
    progress: bool = True,
) -> Comparison:
    """Compare the numpy engine with Julia on one problem.

    Four parts: (1) log densities and gradients at random points; (2) parameters along the same noise, after 1 update
    and more, for each family and optimizer; (3) the final ELBO of `n_runs` runs of each engine with noise of its own;
    (4) milliseconds an update. In float64 the engines agree if log densities and gradients are equal to a relative
    1e-10, parameters after 200 updates to 1e-8 of the largest, and mean ELBOs to 4 standard errors of their
    difference. Time gets no verdict, nor do parameters in float32: there each engine rounds in an order of its own,
    and Adam, which divides by the gradient's size, makes full steps of components that are rounding error.

    Where Julia cannot be used, the numpy engine is compared with recorded runs of Julia on a small case of the
    same kind of model, with the settings of the record, in parts 1 and 2; parts 3 and 4 then show the numpy engine
    alone. The report's first line says so.

    Parameters
    ----------
    model : str or Model
        A name from `tv.list_problems()`, a bundled model, or a model of your own that both engines run.
    families : sequence of {"mean-field", "structured", "full-rank"} or Family
        One with more than 20 million parameters, or that does not fit in memory, is skipped, and the report says so.
    n_points : int
        Points in part 1, from N(0, 0.5^2 I) in unconstrained space.
    n_iterations : int
        Updates in part 2; the verdict is on the first 200.
    fit_iterations : int, optional
        Updates in part 3; by default 2,000, fewer (down to 50) above 100,000 parameters.
    n_runs : int
        Runs of each engine in part 3, at least 2, with the seeds `seed`, `seed + 1`, ...
    stepsize : float, optional
        By default 1e-3 for Adam and 0.01/N for the other rules, whose gradients grow with the data.
    n_samples : int
        Monte Carlo samples M in each gradient.
    optimizers : sequence of str or Rule
        Rules in part 2, one of each kind, by name or as objects with stepsizes of their own. Parts 3 and 4 use the
        first.
    dtype : {"float64", "float32"}
        Of the fits; points are compared in float64.
    seed : int
        Of points, noise and runs, and of a problem's data. The same seed gives the same figures again, times apart.
    n_threads : int
        Threads of the numpy engine; Julia has one.
    reference : {None, "julia", "recorded"}
        Julia itself, or the record; None is Julia where it is set up and starts.
    data_dir, simulated, variant
        As in `tv.load_problem`, for a problem's name.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError, EngineError, MemoryLimitError
        Before any work, for an argument that cannot be used, or a model that one engine alone runs.
    """
    if reference not in (None, "julia", "recorded"):
        raise unknown_name("reference", reference, ["julia", "recorded"])
    plan = Plan(
        Settings.of(optimizer=Adam(), n_iterations=n_iterations, n_samples=n_samples, dtype=dtype, seed=seed),
        families=chosen_families(families),
        rules=read_rules(optimizers, stepsize, 1),  # refused before data are loaded
        n_points=whole_number("n_points", n_points, 1),
        fit_iterations=None if fit_iterations is None else whole_number("fit_iterations", fit_iterations, 1),
        n_runs=whole_number("n_runs", n_runs, 2),
        n_threads=whole_number("n_threads", n_threads, 1),
    )
    target = _checked_model(model, data_dir, simulated, variant, plan.settings.seed)
    plan.check_engines(target)
    plan = replace(plan, rules=read_rules(optimizers, stepsize, max(target.layout.n_local, 1)))
    recorded = target.registry.knows(target) and target.name in recorded_kinds() and not target.unusual
    if reference == "recorded" and not recorded:
        raise InputError(f"reference='recorded': {target.description} was not recorded; use reference='julia'.")
    runtime, why = None, "the record was asked for"
    if reference != "recorded":  # which has points and noise of its own
        plan.check_memory(target)
        runtime, why = _julia(demanded=reference == "julia" or not recorded)

    from tqdm.auto import tqdm

    shown = progress and sys.stderr is not None
    with tqdm(total=plan.n_steps, desc="compare", unit="step", dynamic_ncols=True, disable=not shown) as bar:

        def step(words: str, n_before: int = 1) -> None:
            bar.set_postfix_str(words, refresh=False)
            bar.update(n_before)

        found = _recorded(target, plan, why, step) if runtime is None else _live(target, plan, runtime, step)
        bar.update()
    return found


# ---- what it is done on -------------------------------------------------------------------------------------
def _checked_model(model: Any, data_dir: Any, simulated: bool, variant: str, seed: int) -> Model:
    if isinstance(model, str):
        return load_problem(model, data_dir=data_dir, simulated=simulated, seed=seed, variant=variant)
    if not isinstance(model, Model):
        raise InputError(f"compare: model must be a problem's name or one of tv.models, got {type(model).__name__!r}.")
    if data_dir is not None or simulated or variant != "paper":
        raise InputError("compare: data_dir, simulated and variant go with a problem's name, not with a model.")
    return model


def _julia(demanded: bool) -> tuple[Runtime | None, str]:
    """The started Julia, or None and why there is none."""
    from pyturingvi.bridge.runtime import start_julia

    try:
        return start_julia(), ""
    except EngineError as error:
        if demanded:
            raise EngineError(f"reference='julia': {error}") from None
        return None, str(error)


# ---- doing it -----------------------------------------------------------------------------------------------
def _live(model: Model, plan: Plan, runtime: Runtime, step: Step) -> Comparison:
    sides = [Side(engine, plan.n_threads, plan.settings.dtype) for engine in ("numpy", "julia")]
    step("points", 0)
    points = measures.draw_points(model, plan.n_points, plan.settings.seed)
    rows = measures.point_rows(model, *(side.log_density_and_gradient(model, points) for side in sides))
    for family in plan.families:
        if reason := plan.reason_to_skip(family, model):
            rows.append(measures.row("skipped", model, family, quantity="all", note=reason))
            step("skipped", len(plan.rules) + 2)
            continue
        noise = measures.path_noise(model, family, plan.settings)
        for rule in plan.rules:
            step(f"{family.name}, path of {rule.name}")
            rows += measures.path_rows(sides, model, family, rule, noise)
        del noise
        rows += _own_noise(sides, model, family, plan, step)
    return Comparison(_in_order(rows), f"live Julia {runtime.version}", model.label, _remarks(model, plan))


def _recorded(model: Model, plan: Plan, why: str, step: Step) -> Comparison:
    record, here = RecordedReference(model.name), Side("numpy", plan.n_threads, plan.settings.dtype)
    small = record.model()
    step("points", 0)
    points, *expected = record.points()
    rows = measures.point_rows(small, here.log_density_and_gradient(small, points), expected)
    for family in plan.families:
        for rule in plan.rules:
            step(f"{family.name}, path of {rule.name}")
            rows += _recorded_path(record, small, here, family, rule.name)
        if reason := plan.reason_to_skip(family, model):
            rows.append(measures.row("skipped", model, family, quantity="all", note=f"ELBO and time: {reason}"))
            step("skipped", 2)
            continue
        rows += _own_noise([here], model, family, plan, step)
    remarks = [
        f"Julia is not used: {why.rstrip('.')}.",
        f"Points and paths are those of the record's small case of the same kind of model, {small.label}, with the "
        f"record's settings; ELBO and time of the numpy engine alone are those of {model.label}.",
        *_remarks(model, plan),
    ]
    return Comparison(_in_order(rows), record.source, model.label, remarks)


def _recorded_path(record: RecordedReference, small: Model, here: Side, family: Family, rule: str) -> list[Row]:
    path = record.path(family, rule)
    if path is None:
        note = "not recorded: not available without Julia"
        return [measures.row("path", small, family, rule, quantity="parameters", note=note)]
    n_iterations, n_samples, _ = path.noise.shape
    settings: Row = {"n_samples": n_samples, "noise": path.noise, "elbo_samples": 4 * ELBO_SAMPLES}
    found = here.fit(small, path.family, path.rule, n_iterations, **settings)
    rows = [measures.path_row(small, family, path.rule, path.noise, found, path.params, n_iterations, True)]
    if path.elbo is not None:
        iteration, *julia = path.elbo[-1].tolist()
        runs = {"numpy": [measures.final_elbo(found)], "julia": [(julia[0], julia[1])]}
        note = "at the end of the recorded path, from draws of its own"
        rows.append(measures.elbo_row(small, family, path.rule, "ELBO", int(iteration), runs, note))
    return rows


def _own_noise(sides: Sequence[Side], model: Model, family: Family, plan: Plan, step: Step) -> list[Row]:
    rule, updates, n_samples = plan.rules[0], plan.updates_of(family, model), plan.settings.draws_of(model.layout)
    step(f"{family.name}, ELBO")
    runs: dict[str, list[measures.Elbo]] = {side.engine: [] for side in sides}
    for seed in range(plan.settings.seed, plan.settings.seed + plan.n_runs):
        for side in sides:
            settings: Row = {"seed": seed, "n_samples": n_samples, "elbo_samples": ELBO_SAMPLES}
            runs[side.engine].append(measures.final_elbo(side.fit(model, family, rule, updates, **settings)))
    note = f"{plan.n_runs} runs, {rule_words(rule)}, M = {n_samples}, {ELBO_SAMPLES:,} draws"
    if len(sides) == 1:
        note += "; Julia: not available"
    elbo = measures.elbo_row(model, family, rule, "mean final ELBO", updates, runs, note)
    step(f"{family.name}, time")
    return [elbo, measures.time_row(sides, model, family, rule, n_samples, _TIMED_SECONDS)]


def _in_order(rows: list[Row]) -> list[Row]:
    """The rows, part after part."""
    return sorted(rows, key=lambda row: list(PARTS).index(row["part"]))


def _remarks(model: Model, plan: Plan) -> list[str]:
    sizes = f"N = {model.layout.n_local:,} local variables, d = {model.dim:,} coordinates"
    how = f"{plan.settings.dtype}, seed {plan.settings.seed}, {plan.n_threads} thread(s) of numpy, one of Julia"
    return [f"{model.label}: {sizes}; {how}."]
