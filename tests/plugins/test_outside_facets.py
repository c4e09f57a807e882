"""What a plugin's op says of itself and few models ask: wrong answers name the plugin, and fields
that are none leave it out."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import attrs
import numpy as np
import pytest
from outside_ops import outside
from tflgpu.errors import PluginError
from tflgpu.ir.graph import Node
from tflgpu.ops.base import Arg, Contents, OpDef, Quantized, Sample, Variables, no_attrs
from tflgpu.ops.quantized import Hybrid, InDigits, OnTheFly, Replacement, Rounding
from tflgpu.plugins.registry import Registry
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from third_party_toys import model, registry_of

TWICE = OpDef(
    "ToyTwice", no_attrs, lambda a, x: [x[0].spec], lambda a, x: [x[0] * np.float32(2)],
    lambda: [Sample("odd", {}, (Arg((3, 5)),))], is_custom=True,
)  # fmt: skip


def _raises(*args: Any) -> Any:
    raise KeyError("oh")


def _quantized(**said: Any) -> OpDef:
    return attrs.evolve(TWICE, quantized=Quantized(**said))


def _keeping(states: Any) -> OpDef:
    return attrs.evolve(TWICE, state=Variables(states))


_DIGITS = InDigits(None, {0: 2}, 8, {}, 0, _raises, np.zeros(3, np.float32))

UNASKED: dict[str, tuple[OpDef, str]] = {
    "state.operands raises": (_keeping(_raises), "raised KeyError"),
    "state.operands of none": (_keeping(lambda a: None), "gave None, not a tuple"),
    "state.operands twice": (_keeping(lambda a: (1, 1)), "gave .*there twice"),
    "quantized.stored raises": (_quantized(stored=_raises), "raised KeyError"),
    "quantized.hybrid raises": (_quantized(hybrid=_raises), "raised KeyError"),
    "quantized.hybrid of none": (_quantized(hybrid=lambda n: None), "gave None, not a Hybrid"),
    "quantized.hybrid of no such axis": (
        _quantized(hybrid=lambda n: Hybrid((OnTheFly((5,), Rounding.SYMMETRIC),))), "gave axes"),
    "quantized.table raises": (_quantized(table=_raises), "raised KeyError"),
    "quantized.table of a few": (
        _quantized(table=lambda n: np.array([1, 2], np.int32)), r"gave int32\[2\]"),
    "quantized.digits raises": (_quantized(digits=_raises), "raised KeyError"),
    "quantized.digits of a text": (_quantized(digits=lambda n: "two"), "gave 'two', not a InDig"),
    "quantized.digits of no such operand": (
        _quantized(digits=lambda n: attrs.evolve(_DIGITS, split={5: 2})), "gave operand 5"),
    "quantized.digits of no arrays": (
        _quantized(digits=lambda n: attrs.evolve(_DIGITS, table=None)), "gave .*not all arrays"),
    "quantized.results raises": (_quantized(results=_raises), "raised KeyError"),
    "quantized.results of no arrays": (
        _quantized(results=lambda n: Replacement("NEG", None, (1,))), "gave .*arrays"),
    "elementwise raises": (attrs.evolve(TWICE, elementwise=_raises), "raised KeyError"),
    "contents.zeros_where raises": (
        attrs.evolve(TWICE, contents=Contents(zeros_where=_raises)), "raised KeyError"),
}  # fmt: skip


def _node(ops: Mapping[str, OpDef]) -> Node:
    return build_graph(read_model(model(("NEG",))), 0, ops).nodes[0]


@pytest.mark.parametrize("fault", UNASKED)
def test_a_facet_that_few_models_ask_names_the_plugin(fault: str) -> None:
    (op, match), field = UNASKED[fault], fault.split(maxsplit=1)[0]
    found = registry_of(outside(op)).ops()
    node, facet = _node(found), attrgetter(field)(found[op.name])
    with pytest.raises(PluginError, match=rf"toy-plugin.*: op {op.name}: {field} {match}"):
        facet(node.attrs if field in ("state.operands", "quantized.stored") else node)


def test_digits_that_cannot_be_put_together_name_the_plugin() -> None:
    found = registry_of(outside(_quantized(digits=lambda n: _DIGITS))).ops()
    digits = found[TWICE.name].quantized.digits
    assert digits is not None
    said = digits(_node(found))
    assert said is not None
    with pytest.raises(PluginError, match=r"op ToyTwice: quantized.digits raised KeyError"):
        said.finish((0,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file.max_version", 0), ("batch", "each"), ("quantized.hybrid", 1),
        ("contents.texts", 1), ("contents.counts", [0]), ("device.checked", (-1,)),
        ("contents.indices", (True,)), ("contents.positions", None), ("contents.held", "bytes"),
        ("device.largest_operand", float("nan")), ("file.composed", ("odml.rms_norm",)),
        ("state", lambda attributes: (0,)), ("elementwise", "yes"), ("quantized.stored", None),
        ("quantized.one_scale", 1), ("quantized", True), ("movement", None),
        ("device.limits", None),
    ],
)  # fmt: skip
def test_a_field_that_is_none_leaves_the_plugin_out(field: str, value: Any) -> None:
    group, _, name = field.partition(".")
    part = attrs.evolve(getattr(TWICE, group), **{name: value}) if name else value
    plugin = outside(attrs.evolve(TWICE, **{group: part}))
    (failure,) = Registry.of({"toy-plugin": plugin}, "toy-package").failures
    assert f"OpDef 'ToyTwice': {field} is " in failure.error
