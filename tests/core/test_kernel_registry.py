"""Finding kernel rules, and choosing one for a node."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from tflgpu import kernels
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernels.registry import KernelRegistry, builtin_rules
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import ElementwiseRule, KernelRule, Rule, Site, Unsupported
from tflgpu.ops.base import NoAttrs

from tests.running import raising

SITE = Site(DeviceCaps(), Precision.F32)


def node(op: str, attributes: object = NoAttrs()) -> Node:
    graph = Graph()
    x, y = graph.add_value((3,), DType.F32), graph.add_value((3,), DType.F32)
    return graph.add_node(op, attributes, [x], [y])


def rule(name: str, rank: int = 0, refusal: str | None = None, op: str = "X") -> KernelRule:
    return KernelRule(
        op,
        name,
        raising(AssertionError("choosing a rule must not build kernels")),
        lambda node, site: refusal,
        rank,
    )


def identity(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    return operands[0]


def chosen(op: str, rules: Sequence[Rule]) -> str:
    found = KernelRegistry(rules).select(node(op), SITE)
    assert isinstance(found, KernelRule)
    return found.name


def test_shipped_rules_are_found_in_every_module() -> None:
    names = [m.name for m in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"tflgpu.kernels.{name}") for name in names]
    shipped = [r for module in modules for r in getattr(module, "RULES", ())]
    assert list(builtin_rules()) == shipped
    assert "RELU6" in {r.op for r in shipped}


def test_no_two_shipped_rules_of_an_op_have_one_name_and_rank() -> None:
    for op, rules in KernelRegistry().ops.items():
        keys = [(r.rank, r.name) for r in rules]
        assert len(set(keys)) == len(keys), f"{op}: {keys}"
        assert [r.rank for r in rules] == sorted((r.rank for r in rules), reverse=True)


def test_the_highest_rank_that_accepts_is_taken() -> None:
    assert chosen("X", [rule("plain"), rule("best", 9, "needs f16"), rule("good", 3)]) == "good"


def test_the_order_of_registration_does_not_matter() -> None:
    rules = [rule("b", 1), rule("c", 1), rule("a", 1), rule("other", 9, op="Y")]
    assert chosen("X", rules) == chosen("X", rules[::-1]) == "a"


def test_at_equal_rank_a_plugin_wins() -> None:
    (shipped,) = [r for r in KernelRegistry().ops["RELU"] if r.name == "elementwise"]
    assert chosen("RELU", [rule("own", shipped.rank, op="RELU")]) == "own"
    assert chosen("RELU", [rule("own", shipped.rank - 1, op="RELU")]) == "elementwise"


def test_refusals_are_combined_each_once() -> None:
    rules = [rule("a", 2, "rank 5"), rule("b", 1, "f64"), rule("c", 0, "rank 5")]
    assert KernelRegistry(rules).select(node("X"), SITE) == Unsupported("rank 5; f64")


def test_an_op_without_rules() -> None:
    found = KernelRegistry().select(node("X"), SITE)
    assert found == Unsupported("there is no GPU kernel for X")


def test_an_elementwise_rule_joins_others_unless_a_better_kernel_comes_first() -> None:
    mine = ElementwiseRule("X", identity)
    assert KernelRegistry([mine]).elementwise(node("X"), SITE) is mine
    assert KernelRegistry([mine, rule("fast", 3)]).elementwise(node("X"), SITE) is None
    assert KernelRegistry([mine, rule("fast", 3, "f64")]).elementwise(node("X"), SITE) is mine
    assert KernelRegistry().elementwise(node("X"), SITE) is None
