"""A plugin's ops take part in passes, estimates and reports as shipped ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.target import Target
from tflgpu.compiler.work import estimate
from tflgpu.conformance.facet_checks import facets_of
from tflgpu.conformance.samples import materialize
from tflgpu.errors import PluginError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Site
from tflgpu.ops.affine import Affine
from tflgpu.ops.base import (
    Activation,
    Arg,
    Arithmetic,
    FileForm,
    Movement,
    OnDevice,
    OpDef,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Filter, Pads, Reordered, Work, no_zeros
from tflgpu.ops.moves import Moves
from tflgpu.passes.base import Pass, PassContext
from tflgpu.passes.float_view import float_view
from tflgpu.passes.registry import default_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.plugins.outside_ops import DROP, FIRST, MIX, OPS, outside
from tests.plugins.third_party_toys import install, registry_of
from tests.running import allocate_and_run, allocated, set_and_run
from tests.small_models import small_model, tensor_of

RNG = np.random.default_rng(3)
WEIGHTS = RNG.uniform(-1, 1, (6, 5)).astype(np.float32)
BIAS = RNG.uniform(-1, 1, 5).astype(np.float32)
SCALE, SHIFT = np.linspace(0.5, 2, 5, dtype=np.float32), np.linspace(-1, 1, 5, dtype=np.float32)
IN_SCALE, IN_SHIFT = np.linspace(0.5, 2, 6, dtype=np.float32), np.full(6, 0.25, np.float32)
SIM = "QUANTIZE_AND_DEQUANTIZE"

Step = tuple[str, Sequence[Any], Mapping[str, Any]]


def model(shape: tuple[int, ...], steps: Sequence[Step]) -> bytes:
    """A chain; each step reads the last result (``...``) and constants."""
    tensors = [TensorSpec("x", shape)]
    operators, last = [], 0
    for name, operands, fields in steps:
        inputs = []
        for operand in operands:
            if operand is ...:
                inputs.append(last)
            elif operand is None:
                inputs.append(-1)
            else:
                data = np.asarray(operand)
                dtype = DType.from_numpy(data.dtype)
                inputs.append(len(tensors))
                tensors.append(TensorSpec(f"c{len(tensors)}", data.shape, dtype, data))
        last = len(tensors)
        tensors.append(TensorSpec(f"t{last}", ()))
        operators.append(OperatorSpec(name, fields, tuple(inputs), (last,)))
    return write_model(ModelSpec(tensors, operators, (0,), (last,)))


def step(name: str, *constants: Any, **fields: Any) -> Step:
    return name, (..., *constants), fields


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


MIXED = step("ToyMix", BIAS, WEIGHTS)


def compiled(content: bytes, site: Site | None = None, *ops: OpDef) -> Compiled:
    found = registry_of(outside(*ops))
    graph = build_graph(read_model(content), 0, found.ops())
    target = Target.plain(
        site.caps if site else DeviceCaps(),
        site.precision if site else Precision.F32,
        ops=found.ops(),
        rules=tuple(found.rules("cpu_ref")),
    )
    passes = tuple(default_passes(found.passes()))
    return compile_graph(graph, attrs.evolve(target, passes=passes))


def names(graph: Graph) -> list[str]:
    return [n.op for n in graph]


def check(content: bytes, monkeypatch: pytest.MonkeyPatch, dispatches: int) -> None:
    """On the kernel interpreter it is what the references make of the file, in so many kernels."""
    install(monkeypatch, outside())
    results = []
    for options in ({}, {"backend": "cpu_ref", "device": 1}):
        delegates = [tflgpu.GpuDelegate(**options)] if options else None
        with allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
        ) as interpreter:
            (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
            x = np.random.default_rng(1).uniform(-1, 1, given["shape"])
            if given["dtype"] is np.int8:
                x = x * 100
            set_and_run(interpreter, {given["index"]: x.astype(given["dtype"])})
            results.append(np.array(interpreter.get_tensor(made["index"])))
            report = interpreter.report
        for delegate in delegates or ():
            delegate.close()
    assert report.fully_delegated
    assert report.dispatches == dispatches
    np.testing.assert_allclose(results[1], results[0], atol=1e-5)


def _twice(node: Node) -> Affine:
    return Affine(0, node.input(0).shape[-1], np.full(1, 2.0), np.zeros(1))


#: Elementwise, and affine by what it is, not by a constant operand.
TWICE = OpDef(
    "ToyTwice", no_attrs, lambda a, x: [x[0].spec], lambda a, x: [x[0] * np.float32(2)],
    lambda: [Sample("odd", {}, (Arg((3, 5)),))], elementwise=True, is_custom=True,
    arithmetic=Arithmetic(affine=_twice)
)  # fmt: skip


@pytest.mark.parametrize("op", [*OPS, TWICE], ids=lambda op: op.name)
def test_they_say_the_truth(op: OpDef) -> None:
    shown = [f for s in op.samples() for f in facets_of(materialize(op, s))]
    assert shown
    assert not [f for f in shown if f[1] is not None]


# A filter and an activation

#: What folds into the layer: the steps, and the layer that is left.
FOLDED = {
    "activation": [MIXED, step("RELU6")],
    "scale": [MIXED, step("MUL", SCALE)],
    "shift_and_activation": [MIXED, step("ADD", SHIFT), step("TANH")],
    "fused_activation": [MIXED, step("SUB", SHIFT, fused_activation_function=1)],
    "before": [step("MUL", IN_SCALE), step("ADD", IN_SHIFT), MIXED],
    "after_a_view": [MIXED, step("RESHAPE", ints(6, 5)), step("ADD", SHIFT)],
}


@pytest.mark.parametrize("case", FOLDED)
def test_arithmetic_and_activations_fold(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = model((2, 3, 6), FOLDED[case])
    left = [n for n in compiled(content).graph if n.op != "RESHAPE"]
    assert [n.op for n in left] == ["ToyMix"]
    wanted = {"activation": Activation.RELU6, "shift_and_activation": Activation.TANH,
              "fused_activation": Activation.RELU}  # fmt: skip
    assert left[0].attrs.after is wanted.get(case, Activation.NONE)
    assert len(left[0].origins) == len(FOLDED[case]) - (case == "after_a_view")
    check(content, monkeypatch, dispatches=1)


def test_its_products_are_counted() -> None:
    (node,) = compiled(model((2, 3, 6), [MIXED])).graph
    work = estimate(node, MIX)
    assert work.flops == 2 * (2 * 3 * 5) * 6
    assert work.nbytes == 4 * (2 * 3 * 6 + 2 * 3 * 5 + 6 * 5 + 5)


@pytest.mark.parametrize("op", ["ToyMix", "FULLY_CONNECTED"])
def test_its_weights_are_halved(op: str) -> None:
    weights = RNG.uniform(-1, 1, (96, 128)).astype(np.float32)
    layer = step("ToyMix", None, weights) if op == "ToyMix" else step(op, weights.T.copy(), None)
    site = Target.plain(DeviceCaps(f16_storage=True, is_gpu=True), Precision.F32_F16).site
    (plan,) = compiled(model((40, 96), [layer]), site).plans
    stored = [b.scalar for d in plan.dispatches for b in d.kernel.buffers if b.name == "weights"]
    assert stored == [Scalar.F16]


def quantized(op: str) -> bytes:
    """x (i8) times a filter (i8, a scale a channel) plus a bias (i32 without a scale)."""
    scales = tuple(float(s) for s in np.linspace(0.01, 0.02, 5))
    weights = RNG.integers(-127, 127, (6, 5), np.int8)
    mix = op == "ToyMix"
    stored = weights if mix else np.ascontiguousarray(weights.T)
    tensors = [
        TensorSpec("x", (3, 6), DType.I8, None, Quantization((0.5,), (3,))),
        TensorSpec("w", stored.shape, DType.I8, stored,
                   Quantization(scales, (0,) * 5, 1 if mix else 0)),
        TensorSpec("b", (5,), DType.I32, RNG.integers(-900, 900, 5, np.int32)),
        TensorSpec("y", (3, 5), DType.I8, None, Quantization((0.4,), (-7,))),
    ]  # fmt: skip
    inputs = (0, 2, 1) if mix else (0, 1, 2)
    return write_model(ModelSpec(tensors, [OperatorSpec(op, {}, inputs, (3,))], (0,), (3,)))


def test_its_quantized_form_is_seen_in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry_of(outside())
    views = {}
    for op in ("ToyMix", "FULLY_CONNECTED"):
        graph = build_graph(read_model(quantized(op)), 0, found.ops())
        views[op] = float_view(graph, found.ops()).graph
    assert names(views["ToyMix"]) == ["DEQUANTIZE", "ToyMix", SIM, "QUANTIZE"]
    assert names(views["FULLY_CONNECTED"]) == ["DEQUANTIZE", "FULLY_CONNECTED", SIM, "QUANTIZE"]
    bias = views["ToyMix"].nodes[1].const(1)
    scales = np.float32(0.5) * np.linspace(0.01, 0.02, 5).astype(np.float32)
    given = build_graph(read_model(content := quantized("ToyMix")), 0, found.ops()).nodes[0]
    assert bias.dtype == np.float32
    assert given.const(1).dtype == np.int32
    view = float_view(build_graph(read_model(content), 0, found.ops()), found.ops()).graph
    np.testing.assert_allclose(view.nodes[1].const(1), given.const(1) * scales, rtol=1e-5)
    # What the result becomes joins the kernel; DEQUANTIZE joins only the loads of shipped ones.
    check(content, monkeypatch, dispatches=3)


# Moves


def test_transpositions_of_any_name_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    content = model(
        (1, 4, 3, 6),
        [step("ToyChannelsFirst"), step("LOGISTIC"), step("ADD", np.float32([2])),
         step("ToyChannelsLast"), MIXED],
    )  # fmt: skip
    graph = compiled(content).graph
    assert names(graph) == ["LOGISTIC", "ToyMix"]  # the sum is folded
    assert sorted({o for n in graph for o in n.origins}) == [0, 1, 2, 3, 4]
    check(content, monkeypatch, dispatches=2)


def test_they_meet_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    content = model(
        (1, 4, 3, 6), [step("ToyChannelsFirst"), step("TRANSPOSE", ints(0, 2, 3, 1)), step("EXP")]
    )
    assert names(compiled(content).graph) == ["EXP"]
    check(content, monkeypatch, dispatches=1)


def test_one_alone_runs_on_the_shipped_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    content = model((2, 4, 3, 6), [step("ToyChannelsFirst")])
    assert names(compiled(content).graph) == ["TRANSPOSE"]
    check(content, monkeypatch, dispatches=1)


def test_one_that_moves_nothing_is_a_view() -> None:
    content = model((2, 1, 1, 6), [step("ToyChannelsFirst"), step("EXP")])
    assert names(compiled(content).graph) == ["RESHAPE", "EXP"]


def test_views_of_any_name_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    content = model(
        (2, 3, 6), [step("ToyRows"), step("RESHAPE", ints(2, 3, 6)), step("ABS"), step("ToyRows")]
    )
    assert names(compiled(content).graph) == ["ABS", "RESHAPE"]
    check(content, monkeypatch, dispatches=1)


def test_transpositions_sink_through_what_can_be_reordered() -> None:
    content = model(
        (2, 4, 3, 6),
        [step("TRANSPOSE", ints(0, 3, 1, 2)), step("ToyDrop", ints(0, 1, 2, 0)),
         step("TRANSPOSE", ints(0, 2, 3, 1))],
    )  # fmt: skip
    graph = compiled(content).graph
    assert names(graph) == ["ToyDrop"]
    assert graph.nodes[0].const(1).tolist() == [0, 2, 0, 1]
    fixed = attrs.evolve(DROP, movement=Movement(keeps_values=True))
    assert names(compiled(content, None, fixed).graph) == [
        "TRANSPOSE", "ToyDrop", "TRANSPOSE",
    ]  # fmt: skip


def test_transpositions_sink_through_what_is_elementwise() -> None:
    """The pass once knew the shipped ops only."""
    content = model(
        (2, 4, 3, 6),
        [
            step("TRANSPOSE", ints(0, 3, 1, 2)),
            step("ToyTwice"),
            step("TRANSPOSE", ints(0, 2, 3, 1)),
        ],
    )
    assert names(compiled(content, None, TWICE).graph) == ["ToyTwice"]


@pytest.mark.parametrize("after", [False, True])
def test_arithmetic_of_any_name_folds_into_filters(after: bool) -> None:
    dense = step("FULLY_CONNECTED", WEIGHTS.T.copy(), BIAS)
    steps = [dense, step("ToyTwice")] if after else [step("ToyTwice"), dense]
    (node,) = compiled(model((3, 6), steps), None, TWICE).graph
    assert node.op == "FULLY_CONNECTED"
    np.testing.assert_array_equal(node.const(1), 2 * WEIGHTS.T)
    np.testing.assert_array_equal(node.const(2), 2 * BIAS if after else BIAS)


@pytest.mark.parametrize(
    "op", [FIRST, attrs.evolve(FIRST, movement=attrs.evolve(FIRST.movement, keeps_values=False))]
)
def test_what_is_only_moved_is_not_rounded(op: OpDef) -> None:
    quant = Quantization((0.5,), (3,))
    content = small_model(
        {
            "x": tensor_of((1, 2, 3, 4), DType.I8, None, quant),
            "y": tensor_of((1, 4, 2, 3), DType.I8, None, quant),
        },
        "y = ToyChannelsFirst(x)",
    )
    found = registry_of(outside(op))
    view = float_view(build_graph(read_model(content), 0, found.ops()), found.ops()).graph
    assert (SIM in names(view)) == (not op.movement.keeps_values)


def test_constants_fold() -> None:
    table = RNG.uniform(-1, 1, (1, 30, 30, 60)).astype(np.float32)
    content = model((1, 60, 30, 30), [("ToyChannelsFirst", (table,), {}), step("ABS")])
    graph = compiled(content).graph
    assert names(graph) == []
    np.testing.assert_array_equal(graph.outputs[0].data, np.abs(table.transpose(0, 3, 1, 2)))


# Passes of a plugin


def test_a_pass_sees_all_ops_and_the_target() -> None:
    seen = []

    def look(graph: Graph, context: PassContext) -> int:
        seen.append(context)
        return 0

    site = Target.plain(DeviceCaps(f16_storage=True), Precision.F32_F16).site
    found = registry_of(outside(register_passes=lambda: [Pass("look", look)]))
    graph = build_graph(read_model(model((2, 3, 6), [MIXED])), 0, found.ops())
    passes = tuple(default_passes(found.passes()))
    compile_graph(graph, Target(found.ops(), passes, site, 64, ()))
    assert seen[0].site == site
    assert {"ToyMix", "CONV_2D"} <= set(seen[0].ops)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        seen[0].site = None


# Attributes


@attrs.frozen
class Clip:
    """Attributes whose names mean something elsewhere: in `UnknownOp`, and where an op is fused."""

    reason: str = "because"
    activation: Activation = Activation.RELU
    filter_height: int = 3


def test_attributes_of_any_name_are_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a field is called does not make an op unknown, linear or a window."""
    clip = OpDef(
        "ToyClip", lambda fields: Clip(), lambda a, x: [x[0].spec],
        lambda a, x: [np.maximum(x[0], -0.5)], list, is_custom=True,
    )  # fmt: skip
    content = model((2, 3), [step("ToyClip"), step("RELU")])
    assert names(compiled(content, None, clip).graph) == ["ToyClip", "RELU"]
    install(monkeypatch, outside(clip))
    for options in ({}, {"backend": "cpu_ref", "device": 1}):
        delegates = [tflgpu.GpuDelegate(**options)] if options else []
        with tflgpu.Interpreter(
            model_content=content, experimental_delegates=delegates
        ) as interpreter:
            allocate_and_run(interpreter, {0: np.full((2, 3), 2, np.float32)})
            assert (interpreter.get_tensor(2) == 2).all()
        for delegate in delegates:
            delegate.close()


# Facets that break their contract


def _raises(*args: Any) -> Any:
    raise KeyError("oh")


def _bad_affine(node: Node) -> Any:
    return "twice"


def _moving(op: OpDef, **changes: Any) -> OpDef:
    return attrs.evolve(op, movement=attrs.evolve(op.movement, **changes))


BROKEN: dict[str, tuple[OpDef, str]] = {
    "moves raises": (_moving(FIRST, moves=_raises), "movement.moves raised KeyError"),
    "moves of no such operand": (
        _moving(FIRST, moves=lambda n: Moves(3, (1,), (1,))), "movement.moves gave operand 3"),
    "moves of too many": (
        _moving(FIRST, moves=lambda n: Moves(0, (99,), (1,))), "movement.moves gave .*one result"),
    "moves outside": (
        _moving(FIRST, moves=lambda n: Moves(0, (144,), (1,), 1)),
        "movement.moves gave .*leaves the 144 elements"),
    "moves of halves": (
        _moving(FIRST, moves=lambda n: Moves(0, (144,), (0.5,))),
        "movement.moves gave .*not all whole numbers"),
    "copies nothing": (
        _moving(FIRST, copies=lambda n: 7), "movement.copies gave operand 7"),
    "affine of a text": (
        attrs.evolve(FIRST, arithmetic=Arithmetic(affine=_bad_affine)),
        "arithmetic.affine gave 'twice'"),
    "reorders what it has not": (
        _moving(DROP, reorder=lambda n, o: Reordered(None, {5: ints(1)})),
        "movement.reorder gave operand 5"),
    "refit raises": (
        attrs.evolve(FIRST, file=FileForm(refit=_raises)), "file.refit raised KeyError"),
    "refit of a list": (
        attrs.evolve(FIRST, file=FileForm(refit=lambda *a: [1])), "file.refit gave .*not a dict"),
    "refit of no such operand": (
        attrs.evolve(FIRST, file=FileForm(refit=lambda *a: {3: ints(1)})),
        "file.refit gave contents of operand 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_facet_that_breaks_its_contract_names_the_plugin(fault: str) -> None:
    op, match = BROKEN[fault]
    content = model(
        (2, 4, 3, 6),
        [step("ToyChannelsFirst"), step("ToyDrop", ints(0, 1, 0, 0)), step("ToyChannelsLast")],
    )
    others = [o for o in OPS if o.name != op.name]
    with pytest.raises(PluginError, match=rf"toy-plugin.*: op {op.name}: {match}"):
        compiled(content, None, *others, op)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (Filter(0, 2, 1, 1, spread=_raises), "filter.spread raised KeyError"),
        (
            Filter(0, 2, 1, 1, lambda w, c: lambda n: n[None, :1, None], no_zeros),
            "spread gave numbers",
        ),
        (
            Filter(0, 2, 1, 1, lambda w, c: lambda n: n[:, None], zeros=_raises),
            "filter.zeros raised",
        ),
        (Filter(0, 2, 1, 1, lambda w, c: lambda n: n[:, None], lambda n: Pads(-1)), "is negative"),
    ],
)
def test_a_filter_that_breaks_its_contract_names_the_plugin(kind: Filter, match: str) -> None:
    content = model((2, 3, 6), [step("ADD", IN_SHIFT), MIXED])
    with pytest.raises(PluginError, match=rf"toy-plugin.*: op ToyMix: .*{match}"):
        compiled(
            content, None, attrs.evolve(MIX, arithmetic=attrs.evolve(MIX.arithmetic, filter=kind))
        )


def test_an_activation_field_that_there_is_not() -> None:
    content = model((2, 3, 6), [MIXED])
    with pytest.raises(PluginError, match="op ToyMix: parse gave attributes whose before is None"):
        compiled(content, None, attrs.evolve(MIX, arithmetic=Arithmetic(activation_field="before")))


def test_an_estimate_that_breaks_its_contract_names_the_plugin() -> None:
    broken = attrs.evolve(MIX, device=OnDevice(work=lambda node: Work(0.5, 1)))
    with pytest.raises(
        PluginError, match=r"toy-plugin.*: op ToyMix: device.work gave .*whole numbers"
    ):
        compiled(model((2, 3, 6), [MIXED]), None, broken)
