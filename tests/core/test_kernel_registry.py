"""Finding kernel rules, and choosing one for a node."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from tflgpu import kernels
from tflgpu.errors import PluginError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.lowering import Lowering, Precision
from tflgpu.kernel.rule import ElementwiseRule, KernelRule, Site, Unsupported
from tflgpu.kernels.registry import builtin_rules, elementwise_rule, rules_for, select
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.unknown import UnknownOp

SITE = Site(DeviceCaps(), Precision.F32)


def node(op: str, attributes: object = NoAttrs()) -> Node:
    graph = Graph()
    x, y = graph.add_value((3,), DType.F32), graph.add_value((3,), DType.F32)
    return graph.add_node(op, attributes, [x], [y])


def build(low: Lowering) -> None:
    raise AssertionError("choosing a rule must not build kernels")


def rule(name: str, rank: int = 0, refusal: str | None = None, op: str = "X") -> KernelRule:
    return KernelRule(op, name, build, lambda node, site: refusal, rank)


def test_shipped_rules_are_found_in_every_module() -> None:
    names = [m.name for m in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"tflgpu.kernels.{name}") for name in names]
    shipped = [r for module in modules for r in getattr(module, "RULES", ())]
    assert sum(map(len, builtin_rules().values())) == len(shipped)
    assert "RELU6" in builtin_rules()


def test_every_shipped_op_has_a_usable_list() -> None:
    for op in builtin_rules():
        rules = rules_for(op)
        assert rules
        assert [r.rank for r in rules] == sorted((r.rank for r in rules), reverse=True)
        elementwise_rule(op)  # raises where there are two


def test_rank_then_name_orders_rules_whatever_the_order_of_registration() -> None:
    rules = [rule("b", 1), rule("c", 5), rule("a", 1), rule("other", 9, op="Y")]
    assert [r.name for r in rules_for("X", rules)] == ["c", "a", "b"]
    assert [r.name for r in rules_for("X", rules[::-1])] == ["c", "a", "b"]


def test_two_rules_of_one_name_clash() -> None:
    with pytest.raises(PluginError, match=r"op X has 2 kernel rules named 'a'"):
        rules_for("X", [rule("a"), rule("a", 3)])


def test_elementwise_rules_serve_both_ways() -> None:
    rules = rules_for("RELU", [rule("fast", 3, op="RELU")])
    assert [r.name for r in rules] == ["fast", "elementwise"]
    found = elementwise_rule("RELU")
    assert isinstance(found, ElementwiseRule) and found.op == "RELU"
    assert elementwise_rule("X") is None
    with pytest.raises(PluginError, match="op RELU has 2 elementwise rules"):
        elementwise_rule("RELU", [found])


def test_the_first_rule_that_accepts_is_taken() -> None:
    rules = rules_for("X", [rule("best", 9, "needs f16"), rule("good", 3), rule("plain", 0)])
    chosen = select(node("X"), SITE, rules)
    assert isinstance(chosen, KernelRule) and chosen.name == "good"


def test_refusals_are_combined_each_once() -> None:
    rules = rules_for("X", [rule("a", 2, "rank 5"), rule("b", 1, "f64"), rule("c", 0, "rank 5")])
    assert select(node("X"), SITE, rules) == Unsupported("rank 5; f64")


def test_an_op_without_rules() -> None:
    assert select(node("X"), SITE, []) == Unsupported("there is no GPU kernel for op X")


def test_an_op_that_is_not_understood_says_so() -> None:
    unknown = node("X", UnknownOp("version 9 is too new"))
    assert select(unknown, SITE, [rule("a")]) == Unsupported("version 9 is too new")


def test_a_veto_is_asked_only_for_accepted_nodes_and_wins() -> None:
    no = Unsupported("the driver miscompiles X")
    assert select(node("X"), SITE, [rule("a")], lambda node, site: no) == no
    assert select(node("X"), SITE, [rule("a", 0, "f64")], lambda node, site: no) == Unsupported(
        "f64"
    )
    chosen = select(node("X"), SITE, [rule("a")], lambda node, site: None)
    assert isinstance(chosen, KernelRule)
