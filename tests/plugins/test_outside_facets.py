"""What a plugin's op says of itself and few models ask: wrong answers name the plugin, and fields
that are none leave it out."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from outside_ops import outside
from tflgpu.errors import PluginError
from tflgpu.ops.base import Arg, OpDef, Sample, no_attrs
from tflgpu.ops.facets import Hybrid, OnTheFly, Replacement, Rounding
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


def _keeping(states: Any) -> OpDef:
    return attrs.evolve(TWICE, stateful=True, states=states)


UNASKED: dict[str, tuple[OpDef, str]] = {
    "states raises": (_keeping(_raises), "states raised KeyError"),
    "states of none": (_keeping(lambda a: None), "states gave None, not a tuple"),
    "states twice": (_keeping(lambda a: (1, 1)), "states gave .*there twice"),
    "hybrid raises": (attrs.evolve(TWICE, hybrid=_raises), "hybrid raised KeyError"),
    "hybrid of none": (attrs.evolve(TWICE, hybrid=lambda n: None), ("hybrid gave None, not a "
                                                                   "Hybrid")),
    "hybrid of no such axis": (
        attrs.evolve(TWICE, hybrid=lambda n: Hybrid((OnTheFly((5,), Rounding.SYMMETRIC),))),
        "hybrid gave axes",
    ),
    "int16_table raises": (attrs.evolve(TWICE, int16_table=_raises), "int16_table raised KeyError"),
    "int16_table of a few": (
        attrs.evolve(TWICE, int16_table=lambda n: np.array([1, 2], np.int32)), (r"int16_table "
                                                                               r"gave int32\[2\]")),
    "as_stored raises": (attrs.evolve(TWICE, as_stored=_raises), "as_stored raised KeyError"),
    "as_stored of no arrays": (
        attrs.evolve(TWICE, as_stored=lambda n: Replacement("NEG", None, (1,))), ("as_stored gave "
                                                                                 ".*arrays")),
}  # fmt: skip


@pytest.mark.parametrize("fault", UNASKED)
def test_a_facet_that_few_models_ask_names_the_plugin(fault: str) -> None:
    op, match = UNASKED[fault]
    found = registry_of(outside(op)).ops()
    node = build_graph(read_model(model(("NEG",))), 0, found).nodes[0]
    facet = getattr(found[op.name], fault.split(maxsplit=1)[0])
    with pytest.raises(PluginError, match=rf"toy-plugin.*: op {op.name}: {match}"):
        facet(node.attrs if fault.startswith("states") else node)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_version", 0), ("batch", "each"), ("hybrid", 1), ("texts", 1), ("counts", [0]),
        ("checked", (-1,)), ("indices", (True,)), ("positions", None), ("held", "bytes"),
        ("largest_operand", float("nan")), ("composed", ("odml.rms_norm",)),
        ("states", lambda attributes: (0,)),
    ],
)  # fmt: skip
def test_a_field_that_is_none_leaves_the_plugin_out(field: str, value: Any) -> None:
    plugin = outside(attrs.evolve(TWICE, **{field: value}))
    (failure,) = Registry.of({"toy-plugin": plugin}, "toy-package").failures
    assert f"OpDef 'ToyTwice': {field} is " in failure.error
