"""Kernels for several nodes: when a group is taken, by the example of a 1x1 convolution and the
depthwise one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.build import RuleError
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.kernels.activation import activate
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Precision, guard
from tflgpu.lowering.rule import GroupRule, KernelRule, Maker, Site, Unsupported
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.windows import conv_window

from tests.running import by_plan, raising


def joinable(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    """Both nodes, where the first is a 1x1 convolution."""
    first = maker(node.input(0))
    is_pointwise = first is not None and first.op == "CONV_2D"
    return (first, node) if first is not None and is_pointwise else None


def build_joined(low: Lowering) -> None:
    """Each pixel of the first convolution is made anew for each window that sees it."""
    first, node = low.nodes
    window = conv_window(node)
    batch, height, width, channels = first.outputs[0].shape
    k = low.kernel("joined", (64, 1, 1))
    src, weights, bias = (low.read_value(k, first.input(i), f"first{i}") for i in range(3))
    taps, bias_after = (low.read_value(k, node.input(i), f"second{i}") for i in (1, 2))
    out = low.write(k)
    pixels = batch * window.out_h * window.out_w
    item = k.let(k.global_id(0), "item")
    guard(k, item < pixels * out.slices)
    slice_, pixel = k.let(item % out.slices, "slice"), k.let(item // out.slices, "pixel")
    x, line = k.let(pixel % window.out_w, "x"), k.let(pixel // window.out_w, "line")
    y, image = k.let(line % window.out_h, "y"), k.let(line // window.out_h * height, "image")
    total = k.var(bias_after.load(0, slice_), "total")
    for tap in range(window.kernel_h * window.kernel_w):
        dy, dx = divmod(tap, window.kernel_w)
        iy = k.let(y * window.stride_h - window.pad_top + dy, "iy")
        ix = k.let(x * window.stride_w - window.pad_left + dx, "ix")
        at = k.let((image + k.clamp(iy, 0, height - 1)) * width + k.clamp(ix, 0, width - 1), "at")
        sums = [k.var(k.f32(0.0), "sum") for _ in range(4)]
        with k.loop(0, src.slices, name="s") as s:
            for lane, sum_ in enumerate(sums):
                row = k.min(slice_ * 4 + lane, channels - 1)
                k.add_to(sum_, k.dot(src.load(at, s), weights.load(row, s)))
        made = activate(k, first.attrs.activation, k.vec(sums) + bias.load(0, slice_))
        inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width)
        made = k.select(inside, k.let(made, "made"), k.f32(0.0, 4))
        k.fma_to(total, made, taps.load(tap, slice_))
    out.store(pixel, slice_, activate(k, low.attrs.activation, total))
    low.dispatch(k, (pixels * out.slices, 1, 1))


JOINED = GroupRule("DEPTHWISE_CONV_2D", "joined", joinable, build_joined, rank=1)
RELU6 = 3


class Block:
    """``relu(depthwise(conv1x1(x)))``, both convolutions with biases and RELU6."""

    def __init__(
        self, height: int, width: int, inner: int, outs: int, side: int = 3, stride: int = 1,
        padding: int = 0, batch: int = 1,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(height * width + outs)
        self.graph = graph = Graph()
        self.x = graph.add_value((batch, height, width, inner), DType.F32)
        self.data = rng.uniform(-2, 2, self.x.shape).astype(np.float32)
        graph.inputs = [self.x]

        def constant(*shape: int) -> Value:
            return graph.add_const(rng.uniform(-1, 1, shape).astype(np.float32))

        def add(op: str, inputs: Sequence[Value], **fields: object) -> Value:
            definition = builtin_ops()[op]
            attributes: Any = definition.parse(Fields(op, fields))
            arrays = [self.env[v.id] if v.data is None else v.data for v in inputs]
            (made,) = definition.reference(attributes, arrays)
            value = graph.add_value(made.shape, DType.F32)
            self.env[value.id] = made
            graph.add_node(op, attributes, list(inputs), [value], origins=(len(graph.nodes),))
            return value

        self.env: dict[int, Array] = {self.x.id: self.data}
        self.between = add(
            "CONV_2D", [self.x, constant(outs, 1, 1, inner), constant(outs)],
            stride_h=1, stride_w=1, fused_activation_function=RELU6,
        )  # fmt: skip
        self.after = add(
            "DEPTHWISE_CONV_2D", [self.between, constant(1, side, side, outs), constant(outs)],
            stride_h=stride, stride_w=stride, padding=padding, depth_multiplier=1,
            fused_activation_function=RELU6,
        )  # fmt: skip
        self.y = add("NEG", [self.after])
        graph.outputs = [self.y]

    def plan(self, target: Target) -> Plan:
        return plan_of(self.graph.nodes, self.graph.inputs, self.graph.outputs, target)


def target(
    caps: DeviceCaps | None = None, *rules: KernelRule | GroupRule, **changes: Any
) -> Target:
    found = Target.plain(caps or DeviceCaps(), Precision.F32, rules=rules or (JOINED,))
    return attrs.evolve(found, **changes)


def kernels(plan: Plan) -> list[str]:
    return [d.kernel.name for d in plan.dispatches]


BLOCKS = {
    "odd": Block(7, 11, 5, 6),
    "several squares": Block(17, 19, 3, 9),
    "stride 2": Block(15, 13, 4, 7, stride=2),
    "no padding": Block(12, 10, 7, 5, padding=1),
    "window 5": Block(11, 9, 2, 4, side=5, stride=2),
    "batch": Block(9, 5, 3, 5, batch=3),
}


@pytest.fixture(scope="module")
def device(any_device: Device) -> Device:
    return any_device


@pytest.mark.parametrize("name", BLOCKS)
def test_one_kernel_makes_both(device: Device, name: str) -> None:
    block = BLOCKS[name]
    plan = block.plan(target(device.caps, JOINED, alignment=device.alignment))
    assert kernels(plan) == ["joined"]
    assert plan.dispatches[0].origins == (0, 1, 2)
    (found,) = by_plan(device, plan, block.data)
    np.testing.assert_allclose(found, block.env[block.y.id], rtol=1e-4, atol=1e-5)


def test_a_result_that_others_need_stays() -> None:
    read_twice, given_out = Block(7, 7, 3, 5), Block(7, 7, 3, 5)
    graph = read_twice.graph
    other = graph.add_value(read_twice.between.shape, DType.F32)
    graph.add_node("NEG", None, [read_twice.between], [other])
    graph.outputs.append(other)
    given_out.graph.outputs.append(given_out.between)
    for block in (read_twice, given_out):
        assert "joined" not in kernels(block.plan(target()))


def test_a_rule_of_higher_rank_for_one_of_the_nodes_keeps_them_apart() -> None:
    def best(node: Node) -> KernelRule:
        rule = Target.plain(DeviceCaps(), Precision.F32).rule(node)
        assert isinstance(rule, KernelRule)
        return attrs.evolve(rule, rank=2)

    block = BLOCKS["odd"]
    for node in block.graph.nodes[:2]:
        assert len(block.plan(target(None, JOINED, best(node))).dispatches) == 2
    higher = attrs.evolve(JOINED, rank=3)
    assert len(block.plan(target(None, higher, best(block.graph.nodes[0]))).dispatches) == 1


def test_nothing_is_joined_where_chains_are_not() -> None:
    assert len(BLOCKS["odd"].plan(target(fuse=False)).dispatches) == 3


def test_a_group_never_spans_the_cpu() -> None:
    def objection(node: Node) -> Unsupported | None:
        return Unsupported("not today") if node.op == "CONV_2D" else None

    compiled = compile_graph(BLOCKS["odd"].graph, target(objection=objection))
    assert [p.delegated for p in compiled.parts] == [False, True]
    assert kernels(compiled.plans[0]) == ["depthwise"]


def test_a_group_over_a_limit_becomes_single_kernels() -> None:
    def too_large(low: Lowering) -> None:
        k = low.kernel("large", (512, 1, 1))
        low.write(k).store(0, 0, k.f32(0.0, 4))
        low.dispatch_groups(k, (1, 1, 1))

    rule = attrs.evolve(JOINED, build=too_large)
    compiled = compile_graph(BLOCKS["odd"].graph, target(None, rule))
    assert kernels(compiled.plans[0]) == ["conv_2d_direct", "depthwise"]
    assert compiled.refusals == ()


def _some(node: Node, maker: Maker, site: Site) -> Any:
    return (node,)


def _foreign(node: Node, maker: Maker, site: Site) -> Any:
    return (Node("X", None, [], []), node)


@pytest.mark.parametrize(
    ("match", "says"),
    [(_some, "not nodes of which"), (_foreign, "it matched"),
     (raising(RuntimeError("no idea")), "no idea"),
     (lambda node, maker, site: 3, "it matched 3")],
)  # fmt: skip
def test_a_plugin_that_matches_nonsense_is_named_or_spared(match: Any, says: str) -> None:
    rule = attrs.evolve(JOINED, match=match, owner="toy")
    graph = BLOCKS["odd"].graph
    with pytest.raises(RuleError, match=f"plugin toy.*{says}"):
        compile_graph(graph, target(None, rule))
    compiled = compile_graph(graph, target(None, rule, spares_broken_rules=True))
    assert kernels(compiled.plans[0]) == ["conv_2d_direct", "depthwise"]
    assert list(compiled.broken_rules) == [("toy", "DEPTHWISE_CONV_2D", "joined")]
