"""Which operators run on integers, who is asked, and how integers lie on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.compile import halved_in
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.report_of import report_of
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.kernels.quantized_add import RULES
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import KernelRule, Rule, Unsupported
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.ops.base import Fields, OpDef, Quantized
from tflgpu.ops.quantized import Integers
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.registry import default_passes
from tflgpu.plugins.registry import registry
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.running import by_plan

CAPS = DeviceCaps(int8_storage=True)
COARSE, FINE = Quantization((0.5,), (3,)), Quantization((0.25,), (-5,))
#: What sums and products of quantized numbers become in the float view.
PAIR = "STORED_PAIR"


def graph_of(*ops: str, version: int = 1, shape: tuple[int, ...] = (1, 3, 5, 7)) -> Graph:
    """A chain of ops on i8 tensors; those of two operands also take the input."""
    graph = Graph("chain")

    def tensor() -> Value:
        quant = COARSE if len(graph.values) % 2 else FINE
        return graph.add_value(shape, DType.I8, quant=quant)

    x = last = tensor()
    graph.inputs.append(x)
    for at, op in enumerate(ops):
        attributes = builtin_ops()[op].parse(Fields(op, {}))
        operands = [last, x] if op in ("ADD", "MUL") else [last]
        last = tensor()
        graph.add_node(op, attributes, operands, [last], origins=(at,), version=version)
    graph.outputs.append(last)
    return graph


def target(
    numerics: Numerics = Numerics.INTEGER,
    caps: DeviceCaps = CAPS,
    rules: tuple[Rule, ...] = (),
    ops: dict[str, OpDef] | None = None,
) -> Target:
    plain = Target.plain(caps, Precision.F32, rules=rules, ops=ops, numerics=numerics)
    return attrs.evolve(plain, passes=tuple(default_passes()))


def names(compiled: Compiled) -> list[str]:
    return [n.op for n in compiled.graph]


def test_floats_are_the_default() -> None:
    compiled = compile_graph(graph_of("ADD"), Target.plain(CAPS, Precision.F32))
    assert "QUANTIZED_ADD" not in names(compiled)
    assert PAIR in names(compiled)
    assert not compiled.integers
    assert not compiled.in_floats


def test_each_operator_is_asked_about() -> None:
    graph = graph_of("ADD", "MUL", "ADD")
    before = graph.dump()
    compiled = compile_graph(graph, target())
    assert graph.dump() == before
    assert [n for n in names(compiled) if n not in ("QUANTIZE", "DEQUANTIZE")] == [
        "QUANTIZED_ADD", PAIR, "QUANTIZED_ADD"
    ]  # fmt: skip
    assert compiled.integers == {0, 2}
    assert compiled.in_floats == {1: "nothing computes MUL on stored numbers"}
    assert not compiled.refusals
    report = report_of(graph, compiled)
    assert report.integers == (0, 2)
    assert [(f.node, f.op) for f in report.in_floats] == [(1, "MUL")]
    assert "#1 MUL in floats: nothing computes MUL on stored numbers" in str(report)


def test_integers_between_integers_need_no_conversion() -> None:
    compiled = compile_graph(graph_of("ADD", "ADD"), target())
    assert names(compiled) == ["QUANTIZED_ADD", "QUANTIZED_ADD"]
    assert compiled.graph.outputs[0].dtype is DType.I8


def test_what_no_rule_takes_is_computed_in_floats() -> None:
    refused = attrs.evolve(target(), objection=lambda node: (
        Unsupported("a driver's defect") if node.op == "QUANTIZED_ADD" else None
    ))  # fmt: skip
    compiled = compile_graph(graph_of("ADD"), refused)
    assert not compiled.integers
    assert compiled.in_floats == {0: "a driver's defect"}
    assert PAIR in names(compiled)
    assert not compiled.refusals


def test_a_version_that_is_not_known_is_not_taken() -> None:
    compiled = compile_graph(graph_of("ADD", version=99), target())
    assert compiled.in_floats == {0: "this ADD is not known"}


def test_a_result_too_fine_for_tflites_kernel() -> None:
    graph = graph_of("ADD")
    graph.outputs[0].quant = Quantization((1e-9,), (0,))
    compiled = compile_graph(graph, target())
    assert "too small for the operands'" in compiled.in_floats[0]


@pytest.mark.parametrize("zero_point", [-129, 300])
def test_a_zero_point_that_cannot_be_stored(zero_point: int) -> None:
    graph = graph_of("ADD")
    graph.outputs[0].quant = Quantization((0.5,), (zero_point,))
    compiled = compile_graph(graph, target())
    assert "which i8 does not hold" in compiled.in_floats[0]


# Plugins


def product(node: Any) -> Any:
    return node.attrs if node.attrs.activation.value == 0 else "it has an activation"


def test_a_plugin_brings_an_integer_op_and_its_rule() -> None:
    def multiply(attributes: Any, arrays: Any) -> list[Array]:
        return [(arrays[0].astype(np.int32) * arrays[1]).astype(np.int8)]

    shipped = builtin_ops()["QUANTIZED_ADD"]
    made = attrs.evolve(
        shipped,
        name="ToyMul",
        reference=multiply,
        quantized=Quantized(stored=True, integers=Integers("MUL", product)),
    )
    rule = attrs.evolve(RULES[0], op="ToyMul", expr=lambda k, a, operands: operands[0])
    known = {**builtin_ops(), "ToyMul": made}
    compiled = compile_graph(graph_of("MUL"), target(rules=(rule,), ops=known))
    assert names(compiled) == ["ToyMul"]
    # Without a rule the op is not enough.
    compiled = compile_graph(graph_of("MUL"), target(ops=known))
    assert not compiled.integers
    assert compiled.in_floats == {0: "there is no GPU kernel for ToyMul"}


def test_a_plugins_rule_outranks_the_shipped_one() -> None:
    own = KernelRule("QUANTIZED_ADD", "own", lambda low: None, rank=5)
    node = compile_graph(graph_of("ADD"), target()).graph.nodes[0]
    found = target(rules=(own,)).rule(node)
    assert isinstance(found, KernelRule)
    assert found.name == "own"


# How integers are stored


def test_the_policy() -> None:
    without = attrs.evolve(CAPS, int8_storage=False)
    words, own = IntegerStorage.WORDS, IntegerStorage.OWN_WIDTH

    def stored(policy: IntegerStorage, caps: DeviceCaps) -> list[str]:
        found = []
        for dtype in (DType.I8, DType.U8, DType.BOOL, DType.I32, DType.I64):
            edge = policy.edge(dtype, caps)
            found.append(f"{policy.inside(dtype, caps).value}/{edge.value if edge else '-'}")
        return found

    assert stored(words, CAPS) == ["i32/i8", "i32/u8", "i32/i32", "i32/i32", "i32/-"]
    assert stored(words, without) == ["i32/i32", "i32/i32", "i32/i32", "i32/i32", "i32/-"]
    assert stored(own, CAPS) == ["i8/i8", "u8/u8", "u8/u8", "i32/i32", "i32/-"]
    assert stored(own, without) == ["i32/i32", "i32/i32", "i32/i32", "i32/i32", "i32/-"]
    gpu = attrs.evolve(CAPS, is_gpu=True)
    assert [Numerics.INTEGER.storage_on(c) for c in (CAPS, gpu)] == [words, own]
    assert [Numerics.FLOAT.storage_on(c) for c in (CAPS, gpu)] == [words, words]


def load_and_run(device: Any, compiled: Compiled, inputs: list[Array]) -> list[Array]:
    (part,) = compiled.parts
    assert part.delegated
    recording = device.load(part.plan, guard_bands=True)
    try:
        for array, given in zip(recording.inputs, inputs, strict=True):
            np.copyto(array, given, casting="unsafe")
        recording.run()
        return [np.array(a) for a in recording.outputs]
    finally:
        recording.close()


@pytest.fixture(params=["cpu_ref", "opencl", "vulkan"])
def device(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Any:
    from tflgpu.options import DelegateOptions

    require_backend(request.param)
    index = 1 if request.param == "cpu_ref" else 0
    opened = registry().open_device(request.param, index, DelegateOptions())
    if not opened.caps.int8_storage:
        pytest.skip(f"{opened.info.name} does not store bytes")
    yield opened
    opened.close()


def stored_as(device: Any, policy: IntegerStorage, numerics: Numerics) -> Target:
    plain = Target.plain(device.caps, Precision.F32, alignment=device.alignment, numerics=numerics)
    return attrs.evolve(plain, site=attrs.evolve(plain.site, integers=policy))


def test_an_i8_tensor_takes_a_byte_an_element(device: Any) -> None:
    shape = (1, 15, 20, 7)  # more than a device's alignment, in bytes too
    graph = graph_of("ADD", "ADD", "ADD", shape=shape)
    x = np.random.default_rng(1).integers(-128, 128, shape, np.int8)
    plans, results = [], []
    for policy in (IntegerStorage.WORDS, IntegerStorage.OWN_WIDTH):
        compiled = compile_graph(graph, stored_as(device, policy, Numerics.INTEGER))
        assert compiled.integers == {0, 1, 2}
        plans.append(compiled.plans[0])
        results.append(load_and_run(device, compiled, [x])[0])
    np.testing.assert_array_equal(results[0], results[1])
    sizes = [{b.scalar.value for d in p.dispatches for b in d.kernel.buffers} for p in plans]
    assert sizes == [{"i8", "i32"}, {"i8"}]
    # Two tensors of 300 rows of 7 channels, which are padded to 8.
    elements, step = 300 * 8, device.alignment
    for plan, width in zip(plans, (4, 1), strict=True):
        assert plan.arena_bytes == 2 * (-(-elements * width // step) * step)
    assert plans[1].arena_bytes < plans[0].arena_bytes


def test_booleans_take_a_byte_an_element(device: Any) -> None:
    graph = Graph("bools")
    x = graph.add_value((13, 37), DType.F32)
    y = graph.add_const(np.linspace(-1, 1, 37, dtype=np.float32))
    flags = [graph.add_value((13, 37), DType.BOOL) for _ in range(4)]
    graph.inputs.append(x)
    graph.outputs += [flags[2], flags[3]]
    for op, operands, result in (
        ("GREATER", [x, y], flags[0]), ("LESS", [x, y], flags[1]),
        ("LOGICAL_OR", [flags[0], flags[1]], flags[2]), ("LOGICAL_NOT", [flags[0]], flags[3]),
    ):  # fmt: skip
        graph.add_node(op, builtin_ops()[op].parse(Fields(op, {})), operands, [result])
    data = np.random.default_rng(2).uniform(-1, 1, (13, 37)).astype(np.float32)
    data[0] = y.data
    found = []
    for policy in (IntegerStorage.WORDS, IntegerStorage.OWN_WIDTH):
        target = attrs.evolve(stored_as(device, policy, Numerics.FLOAT), fuse=False)
        compiled = compile_graph(graph, target)
        found.append((compiled.plans[0].arena_bytes, load_and_run(device, compiled, [data])))
    (words, wide), (own, narrow) = found
    assert own < words
    assert [a.dtype for a in wide] == [np.int32] * 2
    assert [a.dtype for a in narrow] == [np.uint8] * 2
    greater, less = data > y.data, data < y.data
    for results in (wide, narrow):
        np.testing.assert_array_equal(results[0], greater | less)
        np.testing.assert_array_equal(results[1], ~greater)


# `Target.in_f32`: some operators in f32, the others in the target's precision.


F32_CAPS = DeviceCaps(f16_arithmetic=True)
SHAPE = (1, 3, 5, 7)


def graph(*ops: str) -> Graph:
    """Operators of one operand, one after another, with the numbers of a file."""
    made = Graph()
    value = made.add_value(SHAPE, DType.F32, name="v0")
    made.inputs.append(value)
    for origin, op in enumerate(ops):
        fields = {"new_shape": SHAPE} if op == "RESHAPE" else {}
        result = made.add_value(SHAPE, DType.F32, name=f"v{origin + 1}")
        attributes = builtin_ops()[op].parse(Fields(op, fields))
        made.add_node(op, attributes, [value], [result], origins=(origin,))
        value = result
    made.outputs.append(value)
    return made


def compiled(
    made: Graph, in_f32: set[int], precision: Precision = Precision.F16
) -> tuple[Compiled, Target]:
    target = attrs.evolve(Target.plain(F32_CAPS, precision), in_f32=frozenset(in_f32))
    return compile_graph(made, target), target


def plan(made: Graph, in_f32: set[int], precision: Precision = Precision.F16) -> Plan:
    (found,) = compiled(made, in_f32, precision)[0].plans
    return found


def scalars(found: Plan) -> list[tuple[str, list[Scalar]]]:
    return [(d.label, [b.scalar for b in d.kernel.buffers]) for d in found.dispatches]


def run(found: Plan, x: Array) -> Array:
    device = CpuRefDevice()
    (y,) = by_plan(device, found, x)
    device.close()
    return y


def test_operators_of_one_precision_run_as_one_kernel() -> None:
    made = graph("SQUARE", "ABS", "SQRT")
    assert len(plan(made, set()).dispatches) == 1
    assert len(plan(made, {0, 1, 2}).dispatches) == 1
    assert [d.origins for d in plan(made, {1}).dispatches] == [(0,), (1,), (2,)]
    assert [d.origins for d in plan(made, {0, 1}).dispatches] == [(0, 1), (2,)]


def test_what_they_make_lies_as_f32() -> None:
    made = graph("SQUARE", "SQRT", "TANH")
    f32, f16 = Scalar.F32, Scalar.F16
    assert [kinds for _, kinds in scalars(plan(made, {0}))] == [[f32, f32], [f32, f32]]
    # At the edges it is f32 in any case.
    assert [kinds for _, kinds in scalars(plan(made, {1}))] == [[f32, f16], [f16, f32], [f32, f32]]


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16])
def test_numbers_too_large_for_f16_survive_in_them(precision: Precision) -> None:
    caps = attrs.evolve(F32_CAPS, cache_bytes=0)
    x = np.full(SHAPE, 1000, np.float32)
    found = {}
    for in_f32 in (set(), {0}, {0, 1}, {0, 1, 2}):
        target = Target.plain(caps, precision)
        target = attrs.evolve(target, in_f32=frozenset(in_f32), fuse=False)
        (only,) = compile_graph(graph("SQUARE", "RESHAPE", "SQRT"), target).plans
        found[frozenset(in_f32)] = run(only, x)
    assert not np.isfinite(found[frozenset()]).any()
    assert not np.isfinite(found[frozenset({0})]).any()  # RESHAPE rounds
    if precision is Precision.F32_F16:
        np.testing.assert_allclose(found[frozenset({0, 1})], x, rtol=1e-6)
    np.testing.assert_allclose(found[frozenset({0, 1, 2})], x, rtol=1e-6)


def test_what_a_device_keeps_in_16_bits_is_known() -> None:
    caps = attrs.evolve(F32_CAPS, cache_bytes=0)
    made = graph("SQUARE", "SQRT", "TANH", "NEG")
    for in_f32, fuse, halved in (
        (set(), False, {1, 2, 3}),
        ({1}, False, {1, 3}),
        (set(), True, set()),  # one kernel: nothing is stored
        ({1}, True, {1}),  # and v3 is inside the last of three
    ):
        target = Target.plain(caps, Precision.F32_F16)
        target = attrs.evolve(target, in_f32=frozenset(in_f32), fuse=fuse)
        (part,) = compile_graph(made, target).parts
        assert halved_in(part, target) == halved, (in_f32, fuse)


def test_so_is_what_shares_memory_with_it() -> None:
    target = Target.plain(attrs.evolve(F32_CAPS, cache_bytes=0), Precision.F32_F16)
    target = attrs.evolve(target, fuse=False)
    (part,) = compile_graph(graph("SQUARE", "RESHAPE", "SQRT"), target).parts
    assert halved_in(part, target) == {1, 2}


def test_the_same_graph_and_target_give_the_same_plan() -> None:
    made = graph("SQUARE", "SQRT", "TANH")
    assert scalars(plan(made, {1})) == scalars(plan(made, {1}))
    assert scalars(plan(made, set())) != scalars(plan(made, {1}))
