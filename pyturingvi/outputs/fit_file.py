"""The file of a fit: one .npz without pickle, with the model's data, read in this version or a later one."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.diagnosis.starts import Starts
from pyturingvi.errors import InputError, OutputError
from pyturingvi.families import Family, family_from_config
from pyturingvi.models.base import Model
from pyturingvi.optimize.monitor import Outcome
from pyturingvi.refine.refinement import Refinement
from pyturingvi.settings import FitSpec, model_digest
from pyturingvi.support.archive import damaged, join_state, read_archive, split_state, write_archive
from pyturingvi.support.files import as_path, check_writable

if TYPE_CHECKING:
    from pyturingvi.result import Fit

FIT_FORMAT = 1
FIT_KIND = "fit"


@dataclass(frozen=True)
class SavedFit:
    """What a file holds of a fit."""

    model: Model
    family: Family
    spec: FitSpec
    outcome: Outcome
    rows: list[tuple[int, float, float, float]]
    seconds: float
    versions: dict[str, str]
    verdict: str | None
    starts: Starts | None
    refined: Refinement | None
    warnings: list[str]
    advice: list[str]


def write_fit(fit: Fit, path: str | os.PathLike[str]) -> Path:
    """See `Fit.save`."""
    target = check_writable(path, "save")
    model = fit.model
    # a model of the user's own may not tell its state, and has to be given to load_fit then
    plain, arrays = split_state(model.get_state(), "model.") if model.has_state else (None, {})
    header = {
        "kind": FIT_KIND,
        "format": FIT_FORMAT,
        "model": model.name,
        **Model.registry.tag(model),
        "label": model.label,
        "model_state": plain,
        "spec": fit.spec.to_json(),
        "status": fit.status,
        "message": fit.message,
        "n_updates": fit.n_updates,
        "arrived": fit.arrived,
        **({"astray": True} if fit.astray else {}),
        "seconds": fit.seconds,
        "versions": fit.versions,
        **({} if fit.gain is None else {"gain": list(fit.gain)}),
        **({} if fit.verdict is None else {"verdict": fit.verdict}),
        **({} if fit.starts is None else {"starts": asdict(fit.starts)}),
        **({"warnings": list(fit.warnings)} if fit.warnings else {}),
        **({"advice": list(fit.advice)} if fit.advice else {}),
    }
    if fit.refined is not None:
        header["refined"], weighted = fit.refined.to_state()
        arrays |= weighted
    rows = np.column_stack(list(fit._elbo_columns().values()))
    try:
        write_archive(target, header, {"params": fit.params, "elbo": rows, **arrays})
    except OSError as error:
        raise OutputError(f"save: cannot write {str(target)!r}: {error.strerror or error}.") from None
    return target


def read_fit(path: str | os.PathLike[str], model: Model | None) -> SavedFit:
    """See `load_fit`."""
    from pyturingvi.models import model_class

    where = as_path(path, "load_fit")
    header, arrays = read_archive(where, FIT_KIND, "load_fit", ["format"])
    if not isinstance(header["format"], int):
        raise damaged(where, "load_fit", f"its format is {header['format']!r}")
    if header["format"] > FIT_FORMAT:
        raise OutputError(f"load_fit: {str(path)!r} was written by a later version of pyturingvi; upgrade it.")
    try:
        versions = header.get("versions", {})
        spec = FitSpec.from_json(header["spec"], versions.get("pyturingvi", "of an unknown version"))
        family = family_from_config(spec.family)
        from_file = header["model_state"] is not None and model is None
        if from_file:
            state = join_state(header["model_state"], arrays, "model.")
            model = model_class(header["model"], header).from_state(state)
        label, arrived = header["label"], header.get("arrived", False)
        gain = None if header.get("gain") is None else (float(header["gain"][0]), float(header["gain"][1]))
        # earlier versions kept a remedy of the run's own in the message alone
        astray = header.get("astray", header["status"] == "completed" and ";" in header["message"])
        ended = header["n_updates"], header["status"], header["message"]
        outcome = Outcome(arrays["params"], *ended, arrived, gain, bool(astray))
        rows = [(int(i), float(e), float(s), float(t)) for i, e, s, t in arrays["elbo"]]
        seconds = header["seconds"]
        starts = None if header.get("starts") is None else Starts.from_state(header["starts"])
        refined = None if header.get("refined") is None else Refinement.from_state(header["refined"], arrays)
        warnings, advice = ([str(words) for words in header.get(name, [])] for name in ("warnings", "advice"))
    except InputError as error:  # what the file names is not to be had here
        raise OutputError(f"load_fit: {str(where)!r}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(where, "load_fit", error) from None
    if not from_file and (not isinstance(model, Model) or model_digest(model) != spec.model_digest):
        what = "holds no model" if model is None else "is of another model"
        raise InputError(f"load_fit: {str(where)!r} {what}; pass the fitted {label!r} as model=.")
    assert model is not None
    if label != model.label:
        model.label = label
    n_params = family.n_params(model.layout)
    if outcome.params.shape != (n_params,):
        raise damaged(where, "load_fit", f"it holds {outcome.params.size} parameters in place of {n_params}")
    verdict = header.get("verdict")
    return SavedFit(model, family, spec, outcome, rows, seconds, versions, verdict, starts, refined, warnings, advice)


def versions_here() -> dict[str, str]:
    """The versions that a fit is made with."""
    return {"python": sys.version.split()[0], "pyturingvi": _own_version(), "numpy": np.__version__}


@functools.cache
def _own_version() -> str:
    from importlib.metadata import version

    return version("pyturingvi")
