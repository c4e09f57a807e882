"""What plugins bring for the compiler, ops, passes and kernel rules, held against what it must be.

By itself, since their classes take long to import, and most plugins bring none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tflgpu.blame import Refused
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule
from tflgpu.ops.base import Accuracy, Activation, OpDef
from tflgpu.ops.facets import Filter, Integers
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

_FLAGS = ("elementwise", "is_custom", "stateful", "is_view", "shape_only", "keeps_values",
          "takes_stored")  # fmt: skip


def check(item: Any, what: str, fail: Callable[[str, str], None]) -> None:
    """What is to be seen of an item besides `FIELDS`. ``fail`` is given a field and what it must be.

    Raises:
        Refused: something is not what it must be; ``what`` begins the message.
    """
    if isinstance(item, (KernelRule, GroupRule)) and item.name == "elementwise":
        fail("name", "one for a KernelRule: it is the name of what an ElementwiseRule becomes")
    if isinstance(item, Pass) and not _takes(item.run, 2):
        raise Refused(
            f"{what}: run does not take two arguments; a pass is called with the graph and a "
            "`PassContext` (tflgpu.passes.context), which has the ops and the device's capabilities"
        )
    if isinstance(item, OpDef):
        if not isinstance(item.accuracy, Accuracy):
            fail("accuracy", "an Accuracy")
        for field in ("generate", "affine", "moves", "copies", "reorder", "work", "states",
                      "at_run_time", "int16_table", "stored_where", "as_stored"):  # fmt: skip
            if getattr(item, field) is not None and not callable(getattr(item, field)):
                fail(field, "a function or None")
        for field in _FLAGS:
            if not isinstance(getattr(item, field), bool):
                fail(field, "True or False")
        if not isinstance(item.activation_field, str):
            fail("activation_field", "the name of an attribute")
        if not isinstance(item.computes, Activation):
            fail("computes", "an Activation")
        if item.integers is not None and not (
            isinstance(item.integers, Integers)
            and isinstance(item.integers.op, str)
            and callable(item.integers.attributes)
            and item.takes_stored
        ):
            fail(
                "integers", "an Integers of an op's name and a function, with takes_stored, or None"
            )
        _check_filter(item, fail)


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
