"""Checks the ops, passes and kernel rules that plugins bring.

By itself, since their classes take long to import, and most plugins bring none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from tflgpu.errors.blame import Refused
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arithmetic,
    Composed,
    Contents,
    FileForm,
    Movement,
    OnDevice,
    OpDef,
    Quantized,
    Variables,
)
from tflgpu.ops.facets import Filter, NarrowTypes
from tflgpu.ops.foreign import checked_op
from tflgpu.ops.quantized import Integers
from tflgpu.passes.base import Pass
from tflgpu.passes.registry import builtin_passes

__all__ = ["FIELDS", "RULES", "OpDef", "Pass", "check", "checked_op", "names_of_passes"]

RULES = (KernelRule, ElementwiseRule, GroupRule)

#: What fields have to be, by type: names, whole numbers and functions.
FIELDS: Mapping[type, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    OpDef: (("name",), (), ("parse", "infer", "reference", "samples")),
    Pass: (("name",), ("phase",), ("run",)),
    KernelRule: (("op", "name"), ("rank",), ("build", "accepts")),
    ElementwiseRule: (("op",), (), ("expr", "accepts")),
    GroupRule: (("op", "name"), ("rank",), ("match", "build")),
}

#: Where the parts of an op's definition are that say what it need not say, and what each has to be.
_FLAGS = (
    "is_custom",
    "contents.texts",
    "contents.shape_only",
    "movement.is_view",
    "movement.keeps_values",
)
_CHOICES = ("elementwise", "quantized.stored")
_FUNCTIONS = (
    "generate",
    "batch",
    "file.refit",
    "file.at_run_time",
    "contents.zeros_where",
    "device.work",
    "movement.moves",
    "movement.copies",
    "movement.reorder",
    "arithmetic.affine",
    "quantized.table",
    "quantized.digits",
    "quantized.results",
    "quantized.hybrid",
)
_POSITIONS = ("contents.counts", "contents.settings", "contents.indices", "device.checked")
_GROUPS: Mapping[str, type] = {
    "file": FileForm,
    "contents": Contents,
    "device": OnDevice,
    "movement": Movement,
    "arithmetic": Arithmetic,
    "quantized": Quantized,
}


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


def names_of_passes() -> list[str]:
    """The shipped graph passes."""
    return [p.name for p in builtin_passes()]


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
    for name, kind in _GROUPS.items():
        if not isinstance(getattr(op, name), kind):
            fail(name, f"a {kind.__name__}")
            return
    if not isinstance(op.accuracy, Accuracy):
        fail("accuracy", "an Accuracy")
    version = op.file.max_version
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        fail("file.max_version", "a version: a whole number, 1 or more")
    if not callable(op.device.limits):
        fail("device.limits", "a function")
    for field in _FUNCTIONS:
        if _part(op, field) is not None and not callable(_part(op, field)):
            fail(field, "a function or None")
    for field in _FLAGS:
        if not isinstance(_part(op, field), bool):
            fail(field, "True or False")
    for field in _CHOICES:
        if not isinstance(_part(op, field), bool) and not callable(_part(op, field)):
            fail(field, "True, False or a function")
    for field in _POSITIONS:
        if not _are_positions(_part(op, field)):
            fail(field, "a tuple of positions of operands")
    for field in ("arithmetic.activation_field", "contents.positions"):
        if not isinstance(_part(op, field), str):
            fail(field, "the name of an attribute")
    if not isinstance(op.arithmetic.computes, Activation):
        fail("arithmetic.computes", "an Activation")
    if not isinstance(op.contents.held, NarrowTypes):
        fail("contents.held", "a NarrowTypes")
    largest = op.device.largest_operand
    if isinstance(largest, bool) or not isinstance(largest, (int, float)) or not largest > 0:
        fail("device.largest_operand", "a positive number")
    if not isinstance(op.file.composed, tuple) or not all(
        isinstance(each, Composed) and callable(each.read) for each in op.file.composed
    ):
        fail("file.composed", "a tuple of Composed, each with a function to read it")
    state = op.state
    if state is not None and (
        not isinstance(state, Variables)
        or (state.operands is not None and not callable(state.operands))
    ):
        fail("state", "Variables of a function or None, or None")
    scale = op.quantized.one_scale
    if scale is not None and not isinstance(scale, (bool, frozenset)):
        fail("quantized.one_scale", "True, False, a frozenset of types or None")
    integers = op.quantized.integers
    if integers is not None and not (
        isinstance(integers, Integers)
        and isinstance(integers.op, str)
        and callable(integers.attributes)
        and op.quantized.stored is True
    ):
        fail(
            "quantized.integers",
            "an Integers of an op's name and a function, with stored=True, or None",
        )
    _check_filter(op, fail)


def _part(op: OpDef, field: str) -> Any:
    """A field of an op, or of a group of it: "batch", "movement.moves"."""
    return attrgetter(field)(op)


def _are_positions(found: object) -> bool:
    return isinstance(found, tuple) and all(
        isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in found
    )


def _check_filter(op: OpDef, fail: Callable[[str, str], None]) -> None:
    kind = op.arithmetic.filter
    if kind is None:
        return
    if not isinstance(kind, Filter) or not isinstance(kind.pads, str):
        fail("arithmetic.filter", "a Filter or None")
        return
    positions = (kind.source, kind.weights, kind.bias, kind.out)
    if any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in positions):
        fail("arithmetic.filter", "a Filter of positions")
    if any(f is not None and not callable(f) for f in (kind.spread, kind.zeros)):
        fail("arithmetic.filter", "a Filter whose spread and zeros are functions or None")


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
