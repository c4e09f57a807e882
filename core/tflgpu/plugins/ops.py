"""Checks the ops, passes and kernel rules that plugins bring.

By itself, since their classes take long to import, and most plugins bring none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tflgpu.errors.blame import Refused
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule
from tflgpu.ops.base import Accuracy, Activation, Composed, OpDef
from tflgpu.ops.facets import Filter, Integers, NarrowTypes
from tflgpu.passes.base import Pass

RULES = (KernelRule, ElementwiseRule, GroupRule)

#: What fields have to be, by type: names, whole numbers and functions.
FIELDS: Mapping[type, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    OpDef: (("name",), ("max_version",), ("parse", "infer", "reference", "samples", "limits")),
    Pass: (("name",), ("phase",), ("run",)),
    KernelRule: (("op", "name"), ("rank",), ("build", "accepts")),
    ElementwiseRule: (("op",), (), ("expr", "accepts")),
    GroupRule: (("op", "name"), ("rank",), ("match", "build")),
}

_FLAGS = (
    "elementwise",
    "is_custom",
    "stateful",
    "is_view",
    "shape_only",
    "keeps_values",
    "takes_stored",
    "texts",
    "one_scale",
)
#: Functions of an op that it need not have.
_FACETS = ("generate", "affine", "moves", "copies", "reorder", "work", "states", "at_run_time",
           "int16_table", "stored_where", "as_stored", "in_digits", "hybrid", "batch",
           "refit", "zeros_where")  # fmt: skip
_POSITIONS = ("counts", "settings", "indices", "checked")


def check(item: Any, what: str, fail: Callable[[str, str], None]) -> None:
    """What is to be seen of an item besides `FIELDS`. ``fail`` is given a field and what it must
    be.

    Raises:
        Refused: something is not what it must be; ``what`` begins the message.
    """
    for field in ("fuses", "keeps_state"):
        if not isinstance(getattr(item, field, True), bool):
            fail(field, "True or False")
    if isinstance(item, (KernelRule, GroupRule)) and item.name == "elementwise":
        fail("name", "one for a KernelRule: it is the name of what an ElementwiseRule becomes")
    if isinstance(item, Pass) and not _takes(item.run, 2):
        raise Refused(
            f"{what}: run does not take two arguments; a pass is called with the graph and a "
            "`PassContext` (tflgpu.passes.context), which has the ops and the device's capabilities"
        )
    if isinstance(item, OpDef):
        _check_op(item, fail)


def refuse_equal_rules(items: Iterable[Any]) -> None:
    """Check that a plugin has no two rules of one name for an op and backend, since a report could
    not tell them apart.

    Raises:
        Refused: it has.
    """
    seen = set[tuple[type, str, str]]()
    for item in items:
        if isinstance(item, (KernelRule, GroupRule)):
            key = (type(item), item.op, item.name)
            if key in seen:
                raise Refused(
                    f"{item} is registered twice; the name of a rule is unique for its op"
                )
            seen.add(key)


def _check_op(op: OpDef, fail: Callable[[str, str], None]) -> None:
    if not isinstance(op.accuracy, Accuracy):
        fail("accuracy", "an Accuracy")
    if op.max_version < 1:
        fail("max_version", "a version: 1 or more")
    for field in _FACETS:
        if getattr(op, field) is not None and not callable(getattr(op, field)):
            fail(field, "a function or None")
    for field in _FLAGS:
        if not isinstance(getattr(op, field), bool):
            fail(field, "True or False")
    for field in _POSITIONS:
        if not _are_positions(getattr(op, field)):
            fail(field, "a tuple of positions of operands")
    for field in ("activation_field", "positions"):
        if not isinstance(getattr(op, field), str):
            fail(field, "the name of an attribute")
    if not isinstance(op.computes, Activation):
        fail("computes", "an Activation")
    if not isinstance(op.held, NarrowTypes):
        fail("held", "a NarrowTypes")
    largest = op.largest_operand
    if isinstance(largest, bool) or not isinstance(largest, (int, float)) or not largest > 0:
        fail("largest_operand", "a positive number")
    if not isinstance(op.composed, tuple) or not all(
        isinstance(each, Composed) and callable(each.read) for each in op.composed
    ):
        fail("composed", "a tuple of Composed, each with a function to read it")
    if op.states is not None and not op.stateful:
        fail("states", "None, as it must be of an op that is not stateful")
    if op.integers is not None and not (
        isinstance(op.integers, Integers)
        and isinstance(op.integers.op, str)
        and callable(op.integers.attributes)
        and op.takes_stored
    ):
        fail("integers", "an Integers of an op's name and a function, with takes_stored, or None")
    _check_filter(op, fail)


def _are_positions(found: object) -> bool:
    return isinstance(found, tuple) and all(
        isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in found
    )


def _check_filter(op: OpDef, fail: Callable[[str, str], None]) -> None:
    kind = op.filter
    if kind is None:
        return
    if not isinstance(kind, Filter) or not isinstance(kind.pads, str):
        fail("filter", "a Filter or None")
        return
    positions = (kind.source, kind.weights, kind.bias, kind.out)
    if any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in positions):
        fail("filter", "a Filter of positions")
    if any(f is not None and not callable(f) for f in (kind.spread, kind.zeros)):
        fail("filter", "a Filter whose spread and zeros are functions or None")


def _takes(function: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it says."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # written in C, say; what a call raises has the plugin's name too
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
