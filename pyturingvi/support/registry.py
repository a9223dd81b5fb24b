"""Names of classes: which class a name in a file stands for, and whether an object is of exactly that class."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from pyturingvi.errors import EngineError, InputError, unknown_name
from pyturingvi.support.archive import digest

T = TypeVar("T")
_IN_WORDS = "in words"
CLASS_KEY = "class"  # in a description, of an object whose class is not registered


class Registry(dict[str, type[T]]):
    """The classes of one kind that can be rebuilt from a description, by their `name`.

    Parameters
    ----------
    kind : str
        What messages call them, such as "family".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def add(self, cls: type[T]) -> type[T]:
        """Register a class under its `name`.

        Raises
        ------
        InputError
            If it is abstract, or another class has the name.
        """
        name = cls.name  # type: ignore[attr-defined]
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name):
            raise InputError(
                f"register: {cls.__name__}.name must be letters, digits, '_', '-' and '.', at most 64: files are named "
                f"by it; got {name!r}."
            )
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
            raise InputError(f"register: {cls.__name__} lacks {missing}.")
        other = self.get(name)
        if other is not None and class_path(other) != class_path(cls):
            raise InputError(f"register: the {self.kind} {name!r} is {class_path(other)} already; choose another name.")
        if other is not None and other is not cls and cls.__module__ != "__main__":
            warnings.warn(f"register: another class {class_path(cls)} takes the first one's place.", stacklevel=3)
        self[name] = cls
        return cls

    def knows(self, thing: T) -> bool:
        """Whether the object can be rebuilt: its exact class is registered."""
        return self.get(getattr(thing, "name", "")) is type(thing)

    def tag(self, thing: T) -> dict[str, str]:
        """What a description must say besides the name, so that no other class is taken for this one."""
        return {} if self.knows(thing) else {CLASS_KEY: class_path(type(thing))}

    def find(self, name: Any, description: Mapping[str, Any]) -> type[T]:
        """The class that a description names.

        Raises
        ------
        InputError
            If no class has this name, or the description is of a class that is not registered.
        """
        written = description.get(CLASS_KEY)
        found = self.get(name) if isinstance(name, str) else None
        if written is not None and (found is None or class_path(found) != written):
            raise InputError(
                f"The {self.kind} {name!r} is the class {written}, which is not registered here. Import it and call "
                "tv.register on it first; no other class is put in its place."
            )
        if _has_words(description):
            raise InputError(f"The {self.kind} {name!r} has settings that files do not hold, such as arrays.")
        if found is None:
            raise unknown_name(self.kind, name, self)
        return found

    def require(self, thing: T, what_for: str) -> None:
        """Refuse an object that could not be rebuilt.

        Raises
        ------
        InputError
            With its class, what it cannot be used for, and what to do.
        """
        if not self.knows(thing):
            raise InputError(
                f"{what_for}: {class_path(type(thing))} is a {self.kind} of your own, which could not be rebuilt. Put "
                "@tv.register above the class."
            )


def describe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an object as JSON gives them back; what JSON cannot hold appears as a digest or in words."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {_IN_WORDS: f"array {value.dtype}{value.shape} {digest(value)}"}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else {_IN_WORDS: repr(value)}


def _has_words(value: Any) -> bool:
    """Whether something in a description stands in words alone."""
    if isinstance(value, Mapping):
        return _IN_WORDS in value or any(map(_has_words, value.values()))
    return isinstance(value, list) and any(map(_has_words, value))


class Named:
    """A kind of class that goes by a `name`: its own, never its parent's, for which it would then be taken."""

    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart; an inherited one does not count, see `defines`."""
        raise EngineError(f"engine='julia' cannot run {class_path(type(self))}; use engine='numpy'.")


def class_path(cls: type) -> str:
    """Module and qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_bundled(thing: object) -> bool:
    """Whether the object's class comes with the package, so that any process has it."""
    return type(thing).__module__.startswith("pyturingvi.")


def defines(thing: object, method: str) -> bool:
    """Whether the object's own class defines a method: what is inherited speaks of another class."""
    return method in type(thing).__dict__


def register(cls: type[T]) -> type[T]:
    """Register a model, family, base distribution, prior, update rule, operator or transform of your own.

    Files name classes; a registered class is found again by its name when a fit or a sweep is read. Without
    registration your class runs all the same, in `tv.fit`.

    Parameters
    ----------
    cls : type
        A subclass of `tv.models.Model`, `tv.families.Family`, `tv.families.BaseDistribution`, `tv.priors.ScalePrior`,
        `tv.optimize.Rule`, `tv.optimize.Operator` or `tv.transforms.Transform`. Its `name` is the class's unless it
        says otherwise.

    Returns
    -------
    type
        The class itself, so that this can stand above it as a decorator.

    Raises
    ------
    InputError
        If it is none of these, is abstract, or its name is taken or unfit for a file.
    """
    registry = getattr(cls, "registry", None)
    if not isinstance(cls, type) or not isinstance(registry, Registry):
        raise InputError(
            "register takes a class of model, family, base distribution, prior, rule, operator or transform, got "
            f"{cls!r}."
        )
    return registry.add(cls)
