"""The terms whose sum a JAX function is, read from its own sums."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_CALLS = ("jit", "pjit", "closed_call")  # looked into; functions with derivatives of their own are not
_SAME_NUMBERS = ("reshape", "squeeze", "expand_dims", "transpose", "copy", "convert_element_type", "broadcast_in_dim")
_SUMS = ("reduce_sum", "add", "add_any", "sub", "neg", "mul", "div", "dot_general", "select_n", *_SAME_NUMBERS)


@dataclass(frozen=True)
class _Node:
    """A value with the operation that gave it; none where it is an argument or a constant."""

    value: Any
    operation: str = ""
    inputs: tuple[_Node, ...] = ()
    settings: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.value, "shape", ()))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def terms_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of an array that returns a flat array of terms, which add up to what `function` returns: a number.

    It goes back from the result through sums, differences, multiples and `where` to the arrays that were summed. What
    is no sum is one term.
    """

    def terms(point: Any) -> Any:
        jax: Any = importlib.import_module("jax")
        traced = jax.make_jaxpr(function)(point)
        (result,) = _run(traced.jaxpr, [_Node(one) for one in traced.consts], [_Node(point)])
        return jax.numpy.concatenate([jax.numpy.ravel(one) for one in _expand(result)])

    return terms


def _run(jaxpr: Any, constants: list[_Node], arguments: list[_Node]) -> list[_Node]:
    """The results, with the way that led there."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(one: Any) -> _Node:
        return _Node(one.val) if hasattr(one, "val") else known[one]

    for equation in jaxpr.eqns:
        inputs = tuple(read(one) for one in equation.invars)
        name, settings = equation.primitive.name, equation.params
        if name in _CALLS:
            inner = settings.get("jaxpr", settings.get("call_jaxpr"))
            outputs = _run(inner.jaxpr, [_Node(one) for one in inner.consts], list(inputs))
        else:
            bound = equation.primitive.get_bind_params(settings)
            functions, bound = bound if isinstance(bound, tuple) else ((), bound)  # a pair before JAX 0.10
            found = equation.primitive.bind(*functions, *(one.value for one in inputs), **bound)
            values = found if equation.primitive.multiple_results else [found]
            outputs = [_Node(value, name, inputs, settings) for value in values]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(one) for one in jaxpr.outvars]


def _expand(node: _Node) -> list[Any]:
    """Arrays whose elements add up to those of the node."""
    inputs = node.inputs
    if node.operation == "reduce_sum" or (node.operation in _SAME_NUMBERS and inputs[0].size == node.size):
        return _expand(inputs[0])
    if node.size != 1:
        return [node.value]
    if node.operation in ("add", "add_any"):
        return _expand(inputs[0]) + _expand(inputs[1])
    if node.operation == "sub":
        return _expand(inputs[0]) + [-one for one in _expand(inputs[1])]
    if node.operation == "neg":
        return [-one for one in _expand(inputs[0])]
    if node.operation == "mul":
        first, second = inputs if inputs[0].operation in _SUMS else inputs[::-1]
        return [one * second.value for one in _expand(first)]
    if node.operation == "div":
        return [one / inputs[1].value for one in _expand(inputs[0])]
    if node.operation == "dot_general" and _is_inner_product(node):
        return [inputs[0].value * inputs[1].value]
    if node.operation == "select_n" and len(inputs) == 3:
        where = importlib.import_module("jax.numpy").where
        which, if_false, if_true = inputs
        no, yes = _expand(if_false), _expand(if_true)
        return [where(which.value, 0.0, one) for one in no] + [where(which.value, one, 0.0) for one in yes]
    return [node.value]


def _is_inner_product(node: _Node) -> bool:
    """Whether two arrays of one shape are multiplied element by element, and all are summed."""
    first, second = node.inputs
    every = tuple(range(len(first.shape)))
    return first.shape == second.shape and tuple(map(tuple, node.settings["dimension_numbers"][0])) == (every, every)
