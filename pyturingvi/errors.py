"""Errors and warnings a user meets: each says which input is wrong, what is wrong with it and what to do."""

from __future__ import annotations

from collections.abc import Iterable

_LISTED = 50  # names in a message: items of a test may be thousands


class PyTuringVIError(Exception):
    """Base class of every error that pyturingvi raises on purpose."""


class InputError(PyTuringVIError, ValueError):
    """An argument has a wrong shape, value or type; nothing was computed."""


class DataError(PyTuringVIError):
    """A data set is missing, unreadable or not what the loader expects."""


class EngineError(PyTuringVIError, RuntimeError):
    """An engine or device is not available, or it cannot do what was asked."""


class JuliaError(EngineError):
    """Julia threw an exception.

    Attributes
    ----------
    kind : str
        Name of the exception's type in Julia, such as "DomainError".
    text : str
        What Julia says of it, without its stack.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.text, self.kind = text, kind

    def __str__(self) -> str:
        return f"Julia: {self.text}"


class MemoryLimitError(PyTuringVIError, MemoryError):
    """The fit would need more memory than there is; nothing was allocated."""


class OutputError(PyTuringVIError, OSError):
    """A path for a result or a checkpoint cannot be written or read."""


class UnreliableError(PyTuringVIError):
    """Importance weights are so uneven that what they give cannot be relied on."""


class ConvergenceWarning(UserWarning):
    """A fit went astray, was still improving when it ended, or had data on a scale that no fit gets right."""


class RefineWarning(UserWarning):
    """A fit converged, but its family does not hold the globals as the posterior has them; `Fit.refine` does."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Build the error for a name that is not one of `known`, offering the nearest known one."""
    options = list(known)
    import difflib  # here: a fit needs it only for a mistake

    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    more = f" and {len(options) - _LISTED:,} more" if len(options) > _LISTED else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(options[:_LISTED])}{more}.")


def in_short(error: BaseException) -> str:
    """Kind and first line of an error that is not ours, without its full stop: what a sentence of ours can hold."""
    kind, first = type(error).__name__, (str(error).strip().splitlines() or [""])[0].strip().rstrip(".")
    return f"{kind}: {first}" if first else kind
