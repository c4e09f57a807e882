"""Integer ops of third parties: what they say is looked at before anything is built on it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tflgpu.compiler.stored_numbers import integer_node
from tflgpu.errors import PluginError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.ir.quant import Quantization
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import Fields, OpDef, Quantized
from tflgpu.ops.quantized import Integers
from tflgpu.ops.registry import builtin_ops
from third_party_toys import plugin_of, registry_of

SHIPPED = builtin_ops()["QUANTIZED_ADD"]


def toy(attributes: Any, **changes: Any) -> OpDef:
    quantized = Quantized(stored=True, integers=Integers("ADD", attributes))
    return attrs.evolve(SHIPPED, name="ToyAdd", quantized=quantized, **changes)


def node() -> Node:
    graph = Graph()
    quant = Quantization((0.5,), (3,))
    a, b, c = (graph.add_value((2, 3), DType.I8, quant=quant) for _ in range(3))
    return graph.add_node("ADD", builtin_ops()["ADD"].parse(Fields("ADD", {})), [a, b], [c])


def ops_with(op: OpDef) -> Any:
    return registry_of(plugin_of(register_ops=lambda: [op])).ops()


def test_a_plugins_op_is_asked_first() -> None:
    shipped = SHIPPED.quantized.integers
    assert shipped is not None
    found = integer_node(node(), ops_with(toy(shipped.attributes)), lambda made: None)
    assert isinstance(found, Node)
    assert found.op == "ToyAdd"


def test_where_it_says_no_the_shipped_one_is_asked() -> None:
    found = integer_node(node(), ops_with(toy(lambda made: "not today")), lambda made: None)
    assert isinstance(found, Node)
    assert found.op == "QUANTIZED_ADD"


def test_all_reasons_are_given() -> None:
    refusal = Unsupported("no rule")
    found = integer_node(node(), ops_with(toy(lambda made: "not today")), lambda made: refusal)
    assert found == Unsupported("not today; no rule")


@pytest.mark.parametrize("given", [None, ""])
def test_no_answer(given: Any) -> None:
    ops = ops_with(toy(lambda made: given))
    with pytest.raises(
        PluginError, match=r"toy-plugin.*ToyAdd: quantized.integers.attributes gave"
    ):
        integer_node(node(), ops, lambda made: None)


def test_what_it_raises_has_its_name() -> None:
    def fail(made: Node) -> Any:
        raise ValueError("boom")

    with pytest.raises(PluginError, match=r"toy-plugin.*integers.attributes raised.*boom"):
        integer_node(node(), ops_with(toy(fail)), lambda made: None)


def test_results_of_another_type() -> None:
    def infer(attributes: Any, operands: Any) -> Any:
        return [attrs.evolve(operands[0].spec, dtype=DType.I32)]

    shipped = SHIPPED.quantized.integers
    assert shipped is not None
    ops = dict(ops_with(toy(shipped.attributes, infer=infer)))
    del ops["QUANTIZED_ADD"]
    found = integer_node(node(), ops, lambda made: None)
    assert found == Unsupported("ToyAdd gives i32[2,3]")


@pytest.mark.parametrize(
    "wrong",
    [{"integers": "ADD"}, {"integers": Integers("ADD", None)}, {"stored": False}],  # type: ignore[arg-type]
)
def test_a_malformed_facet_is_refused(wrong: dict[str, Any]) -> None:
    op = toy(lambda made: "no")
    op = attrs.evolve(op, quantized=attrs.evolve(op.quantized, **wrong))
    found = registry_of(plugin_of(register_ops=lambda: [op]), broken=True)
    assert any("integers is" in str(failure) for failure in found.failures)
