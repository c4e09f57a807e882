"""Checks the ops, passes and kernel rules that plugins bring.

By itself, since their classes take long to import, and most plugins bring none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tflgpu.errors.blame import FieldRule, Refused, is_name, is_text, is_whole, shown
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


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_flag_or_function(value: object) -> bool:
    return isinstance(value, bool) or callable(value)


def _is_position(value: object) -> bool:
    return is_whole(value) and value >= 0


def _are_positions(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_position, value))


def _is_filter(value: object) -> bool:
    return isinstance(value, Filter) and is_text(value.pads)


def _are_composed(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, Composed) and callable(each.read) for each in value
    )


def _are_variables(value: object) -> bool:
    return isinstance(value, Variables) and (value.operands is None or callable(value.operands))


def _is_integers(value: object) -> bool:
    return isinstance(value, Integers) and isinstance(value.op, str) and callable(value.attributes)


_NAME: FieldRule = (("name",), "a name", is_name)
_RULE: Sequence[FieldRule] = (
    (("op", "name"), "a name", is_name),
    (("rank",), "a whole number", is_whole),
    (("fuses",), "True or False", _is(bool)),
    (
        ("name",),
        "one for a KernelRule: it is the name of what an ElementwiseRule becomes",
        lambda value: value != "elementwise",
    ),
)
_OP: Sequence[FieldRule] = (
    _NAME,
    (("parse", "infer", "reference", "samples"), "a function", callable),
    # The groups come first: the rows below look at their parts.
    (("file",), "a FileForm", _is(FileForm)),
    (("contents",), "a Contents", _is(Contents)),
    (("device",), "a OnDevice", _is(OnDevice)),
    (("movement",), "a Movement", _is(Movement)),
    (("arithmetic",), "a Arithmetic", _is(Arithmetic)),
    (("quantized",), "a Quantized", _is(Quantized)),
    (("accuracy",), "an Accuracy", _is(Accuracy)),
    (
        ("file.max_version",),
        "a version: a whole number, 1 or more",
        lambda value: _is_position(value) and value > 0,
    ),
    (("device.limits",), "a function", callable),
    (
        (
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
        ),
        "a function or None",
        _or_none(callable),
    ),
    (
        (
            "is_custom",
            "contents.texts",
            "contents.shape_only",
            "movement.is_view",
            "movement.keeps_values",
        ),
        "True or False",
        _is(bool),
    ),
    (("elementwise", "quantized.stored"), "True, False or a function", _is_flag_or_function),
    (
        ("contents.counts", "contents.settings", "contents.indices", "device.checked"),
        "a tuple of positions of operands",
        _are_positions,
    ),
    (("arithmetic.activation_field", "contents.positions"), "the name of an attribute", is_text),
    (("arithmetic.computes",), "an Activation", _is(Activation)),
    (("contents.held",), "a NarrowTypes", _is(NarrowTypes)),
    (
        ("device.largest_operand",),
        "a positive number",
        lambda value: isinstance(value, (int, float)) and value is not True and value > 0,
    ),
    (
        ("file.composed",),
        "a tuple of Composed, each with a function to read it",
        _are_composed,
    ),
    (("state",), "Variables of a function or None, or None", _or_none(_are_variables)),
    (
        ("quantized.one_scale",),
        "True, False, a frozenset of types or None",
        lambda value: value is None or isinstance(value, (bool, frozenset)),
    ),
    (("arithmetic.filter",), "a Filter or None", _or_none(_is_filter)),
    (
        ("arithmetic.filter",),
        "a Filter of positions",
        _or_none(lambda f: _are_positions((f.source, f.weights, f.bias, f.out))),
    ),
    (
        ("arithmetic.filter",),
        "a Filter whose spread and zeros are functions or None",
        _or_none(lambda f: all(map(_or_none(callable), (f.spread, f.zeros)))),
    ),
)

#: What the fields of a value have to be, by its type.
FIELDS: Mapping[type, Sequence[FieldRule]] = {
    OpDef: _OP,
    Pass: (_NAME, (("phase",), "a whole number", is_whole), (("run",), "a function", callable)),
    KernelRule: (
        *_RULE,
        (("build", "accepts"), "a function", callable),
        (("keeps_state",), "True or False", _is(bool)),
    ),
    ElementwiseRule: (
        (("op",), "a name", is_name),
        (("expr", "accepts"), "a function", callable),
    ),
    GroupRule: (*_RULE, (("match", "build"), "a function", callable)),
}


def check(item: Any, what: str) -> None:
    """What is to be seen of an item besides `FIELDS`.

    Raises:
        Refused: something is not what it must be; ``what`` begins the message.
    """
    if isinstance(item, Pass) and not _takes(item.run, 2):
        raise Refused(
            f"{what}: run does not take two arguments; a pass is called with the graph and a "
            "`PassContext` (tflgpu.passes.base), which has the ops and the device's capabilities"
        )
    if isinstance(item, OpDef):
        integers, stored = item.quantized.integers, item.quantized.stored
        if not (integers is None or (_is_integers(integers) and stored is True)):
            raise Refused(
                f"{what}: quantized.integers is {shown(integers)}, not an Integers of an op's name "
                "and a function, with stored=True, or None"
            )


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
