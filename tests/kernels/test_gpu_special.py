"""Special numbers and random graphs in the kernels that only a GPU gets, run on the kernel
interpreter.

Many ops choose a kernel by what the device can do: other tiles, several pixels an invocation, a
team for each result, matrix tiles. The devices of a machine without a GPU never ask for those, so
here the interpreter pretends to be such a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import GpuDelegate, Interpreter
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target
from tflgpu.conformance.graph_checks import GRAPHS, graph_checks
from tflgpu.conformance.op_checks import Question, ask, judge
from tflgpu.conformance.run import Tensors, prepare
from tflgpu.conformance.special import SpecialKind, SpecialNumbers, special_samples
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.kernels.domain import team_shape
from tflgpu.kernels.operands import pixels_per_invocation
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import has_matrices
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Precision, guard
from tflgpu.lowering.rule import KernelRule, Unsupported
from tflgpu.lowering.stored_types import weight_storage
from tflgpu.lowering.tuning import H200, TABLE, Tuning, tuning_of
from tflgpu.lowering.weights import Weights
from tflgpu.ops.base import Fields, OpDef, Sample
from tflgpu.ops.conv import conv_sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.registry import registry
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.running import allocate_and_run
from tests.small_models import small_model

OPS = builtin_ops()
CAPS = {
    "large": DeviceCaps(
        f16_arithmetic=True, int8_storage=True, max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 64), shared_bytes=48 << 10, max_buffer_bytes=1 << 31,
        max_bindings=1 << 20, subgroup_shuffle=32, matrix_tiles=True,
        cache_bytes=50 << 20, compute_units=132, is_gpu=True, vendor="nvidia",
    ),
    # Invocations take several pixels where processors are few; no more than every API promises.
    "small": DeviceCaps(f16_arithmetic=True, is_gpu=True),
}  # fmt: skip
CAPS["large, as WebGPU has it"] = attrs.evolve(
    CAPS["large"], matrix_tiles=False, subgroup_shuffle=0
)
#: Ops whose kernels depend on the device, and those that differ once more on a small one.
LARGE = (
    "ADD_N", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CONCATENATION", "CONV_2D",
    "Convolution2DTransposeBias", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "L2_POOL_2D", "LSTM",
    "MAX_POOL_2D", "MEAN", "MEAN_STDDEV_NORMALIZATION", "REDUCE_MAX", "SOFTMAX", "SUM",
    "TRANSPOSE_CONV",
)  # fmt: skip
SMALL = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
DEVICES = [("large", op) for op in LARGE] + [("small", op) for op in SMALL]
#: Which operand is the filter or matrix of a product.
FILTERS = {"CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "FULLY_CONNECTED": 1, "TRANSPOSE_CONV": 1}
#: On matrix tiles, of depths that fill their stages and that do not.
DEEP = [
    conv_sample("matrix", (1, 5, 7, 37), (21, 3, 3, 37)),
    conv_sample("matrix_aligned", (1, 4, 8, 64), (32, 1, 1, 64)),
]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], DeviceUnderTest]]:
    opened: list[DeviceUnderTest] = []

    def make(name: str) -> DeviceUnderTest:
        opened.append(DeviceUnderTest.open(registry(), "cpu_ref", 1))
        monkeypatch.setattr(opened[-1].device, "caps", CAPS[name])
        return opened[-1]

    yield make
    for target in opened:
        target.close()


@attrs.frozen
class _Corner(SpecialNumbers):
    """A special number in the first or the last element of an operand."""

    last: bool = True

    def plant(self, index: int, data: Array, rng: np.random.Generator) -> Array:
        if index != self.operand:
            return data
        planted = np.array(data)
        planted.reshape(-1)[-1 if self.last else 0] = (
            np.inf if self.kind is SpecialKind.INF else np.nan
        )
        return planted


def _corners(op: OpDef, operand: int) -> list[tuple[Sample, SpecialNumbers]]:
    """Infinities at either end of an operand, which kernels read beside what is padding."""
    return [
        (sample, _Corner(SpecialKind.INF, operand, last=i % 3 > 0))
        for i, sample in enumerate(op.samples())
        if operand < len(sample.args) and sample.args[operand] is not None
    ]


def _check(target: DeviceUnderTest, questions: Sequence[Question]) -> int:
    """How many were answered; all of them rightly."""
    wrong, answered = [], 0
    for question, (case, answer) in zip(questions, ask(target, questions), strict=True):
        try:
            answered += judge(target, case, answer, half=question.half) is None
        except AssertionError as error:
            wrong.append(f"{question.name}: {error}")
    assert not wrong, "\n".join(wrong)
    return answered


@pytest.mark.parametrize(("caps", "op"), DEVICES)
def test_special_numbers_reach_what_they_should(
    pretend: Callable[[str], DeviceUnderTest], caps: str, op: str
) -> None:
    found = special_samples(OPS[op])
    if op in FILTERS:
        found = found + _corners(OPS[op], FILTERS[op])
    asked = [Question(OPS[op], s, Precision.F32, Tensors.INTERNAL, planted=p) for s, p in found]
    assert _check(pretend(caps), asked) >= len(asked) // 3


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16], ids=lambda p: p.value)
def test_special_numbers_on_matrix_tiles(
    pretend: Callable[[str], DeviceUnderTest], precision: Precision
) -> None:
    target, op = pretend("large"), OPS["CONV_2D"]
    planted = [
        plant
        for kind in (SpecialKind.NAN, SpecialKind.INF, SpecialKind.MINUS_INF, SpecialKind.HUGE)
        for plant in (SpecialNumbers(kind, 0, 6e4), SpecialNumbers(kind, 1, 6e4))
    ]
    planted += [_Corner(kind, 1) for kind in (SpecialKind.INF, SpecialKind.NAN)]
    asked = [Question(op, s, precision, Tensors.INTERNAL, planted=p) for s in DEEP for p in planted]
    case = Question(op, DEEP[0], precision, Tensors.INTERNAL).case()
    prepared = prepare(case, target.compiled_for(precision), Tensors.INTERNAL)
    assert not isinstance(prepared, Unsupported)
    assert any(has_matrices(d.kernel) for d in prepared.plan.dispatches)
    assert _check(target, asked) == len(asked)


@pytest.mark.parametrize("caps", CAPS)
def test_random_graphs(pretend: Callable[[str], DeviceUnderTest], caps: str) -> None:
    """Those of conformance, in all precisions."""
    target = pretend(caps)
    asked = [check for check in graph_checks() if check.id.startswith("4/fused/")]
    answers = {check.id: check.run(target) for check in asked}
    assert len(answers) == 3 * GRAPHS
    assert set(answers.values()) == {None}, answers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", ["ADD", "FULLY_CONNECTED"])
def test_a_constant_beyond_f16_is_infinite_without_a_word_of_numpys(op: str) -> None:
    """It would be an exception of NumPy's where warnings are errors."""
    constant = np.full((3, 4) if op == "FULLY_CONNECTED" else (4,), 1e6, np.float32)
    tensors = [
        TensorSpec("x", (1, 4)), TensorSpec("c", constant.shape, data=constant),
        TensorSpec("y", (1, 3 if op == "FULLY_CONNECTED" else 4)),
    ]  # fmt: skip
    given = (0, 1, -1) if op == "FULLY_CONNECTED" else (0, 1)
    content = write_model(ModelSpec(tensors, [OperatorSpec(op, {}, given, (2,))], (0,), (2,)))
    with (
        GpuDelegate(backend="cpu_ref", device=1, precision="f16", enable_serialization=False) as it,
        Interpreter(model_content=content, experimental_delegates=[it]) as interpreter,
    ):
        allocate_and_run(interpreter, {0: np.ones((1, 4), np.float32)})
        assert np.isposinf(interpreter.get_tensor(2)).all()


# A normalization over one element gives one number, unless that element is not finite: a compiler
# for graphics that sees the one element leaves the question out.


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize(("op", "fields", "number"), [
    ("SOFTMAX", {"beta": 1.0}, 1.0), ("SOFTMAX", {"beta": 0.5}, 1.0), ("LOG_SOFTMAX", {}, 0.0),
])  # fmt: skip
def test_what_is_not_finite_is_nan(
    op: str, fields: dict[str, Any], number: float, backend: str
) -> None:  # fmt: skip
    given = np.array([[np.nan], [np.inf], [-np.inf], [3e38], [0], [-7]], np.float32)
    model = small_model({"x": given.shape, "y": given.shape}, (f"y = {op}(x)", fields))
    with (
        GpuDelegate(backend=backend) as delegate,
        Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        allocate_and_run(interpreter, {0: given})
        assert interpreter.report.fully_delegated
        found = interpreter.get_tensor(1)
    np.testing.assert_array_equal(found, [[np.nan]] * 3 + [[number]] * 3)


# A kernel may unroll its slices in Python: at a part's edge, too, where rows have no padding.


def _twice(low: Lowering) -> None:
    """The example of docs/design.md."""
    k = low.kernel("scale", (64, 1, 1))
    src, dst = low.read(k, 0), low.write(k)
    i = k.let(k.global_id(0), "i")
    guard(k, i < dst.layout.outer)
    for s in range(dst.slices):
        dst.store(i, s, src.load(i, s) * 2.0)
    low.dispatch(k, (dst.layout.outer, 1, 1))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 9])
def test_every_channel_is_written_once(channels: int, inside: bool) -> None:
    """The interpreter refuses two writes of one element, and any beyond the buffer."""
    rng = np.random.default_rng(channels)
    graph = Graph()
    values = [graph.add_value((3, channels), DType.F32) for _ in range(3 if inside else 2)]
    no_attributes = builtin_ops()["NEG"].parse(Fields("NEG", {}))
    for source, result in pairwise(values):
        graph.add_node("NEG", no_attributes, [source], [result])
    rule = KernelRule("NEG", "twice", _twice, rank=9, fuses=False)
    target = Target.plain(DeviceCaps(), Precision.F32, rules=(rule,))
    device = CpuRefDevice()
    recording = device.load(plan_of(graph.nodes, values[:1], values[-1:], target))
    x = rng.uniform(-1, 1, (3, channels)).astype(np.float32)
    recording.inputs[0][...] = x.reshape(recording.inputs[0].shape)
    recording.run()
    got = np.array(recording.outputs[0]).reshape(x.shape)
    np.testing.assert_array_equal(got, x * (4 if inside else 2))
    recording.close()
    device.close()


# Weights that f16 does not hold well, those of files and those that passes would make: not stored
# in it.


CHANNELS = 16
HALVES_FILTERS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "CONV_2D": ((CHANNELS, 3, 3, CHANNELS), {"stride_w": 1, "stride_h": 1}),
    "DEPTHWISE_CONV_2D": ((1, 3, 3, CHANNELS), {"stride_w": 1, "stride_h": 1,
    "depth_multiplier": 1}),
    "TRANSPOSE_CONV": ((CHANNELS, 3, 3, CHANNELS), {"stride_w": 2, "stride_h": 2}),
    "FULLY_CONNECTED": ((CHANNELS, CHANNELS), {}),
}  # fmt: skip
#: Of the factor, the weights and the input. Products of the first two overflow f16, or are among
#: its subnormals; none of the three is, and neither are the results.
SIZES = [(1e4, 20.0, 1e-3), (1e-4, 1e-2, 1e3)]


def scaled(op: str, factor: float, size: float, before: bool) -> tuple[bytes, tuple[int, ...]]:
    """A filter of SAME padding, and a MUL by a factor a channel before or behind it."""
    shape, options = HALVES_FILTERS[op]
    rng = np.random.default_rng(3)
    weights = (rng.normal(size=shape) * size).astype(np.float32)
    factors = (rng.uniform(0.5, 1, CHANNELS) * factor).astype(np.float32)
    x = (64, CHANNELS) if op == "FULLY_CONNECTED" else (1, 8, 8, CHANNELS)
    y = (1, 16, 16, CHANNELS) if op == "TRANSPOSE_CONV" else x
    tensors = [
        TensorSpec("x", x), TensorSpec("between", x if before else y), TensorSpec("y", y),
        TensorSpec("w", shape, data=weights), TensorSpec("factors", (CHANNELS,), data=factors),
        TensorSpec("b", (CHANNELS,), data=np.zeros(CHANNELS, np.float32)),
        TensorSpec("shape", (len(y),), DType.I32, data=np.array(y, np.int32)),
    ]  # fmt: skip
    source, target = (1, 2) if before else (0, 1)
    operands = (6, 3, source, 5) if op == "TRANSPOSE_CONV" else (source, 3, 5)
    operators = [
        OperatorSpec(op, options, operands, (target,)),
        OperatorSpec("MUL", {}, (0 if before else 1, 4), (1 if before else 2,)),
    ]
    if before:
        operators.reverse()
    return write_model(ModelSpec(tensors, operators, (0,), (2,))), x


@pytest.mark.parametrize("backend", ["cpu_ref", "vulkan", "wgpu"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("op", HALVES_FILTERS)
def test_factors_stay_out_of_weights_that_f16_would_spoil(
    op: str, before: bool, backend: str
) -> None:
    for factor, size, of_input in SIZES:
        content, shape = scaled(op, factor, size, before)
        x = (np.random.default_rng(4).normal(size=shape) * of_input).astype(np.float32)
        results = []
        for precision in ("f32", "f16"):
            with (
                tflgpu.GpuDelegate(
                    backend=backend, device=1 if backend == "cpu_ref" else 0, precision=precision
                ) as delegate,
                tflgpu.Interpreter(
                    model_content=content, experimental_delegates=[delegate]
                ) as interpreter,
            ):
                allocate_and_run(interpreter, {0: x})
                assert interpreter.report.fully_delegated
                results.append(interpreter.get_tensor(2))
        exact, half = results
        # f16 rounds inputs, factors, sums and results to 11 bits each.
        assert np.abs(half - exact).max() < 6 * 2**-11 * np.abs(exact).max()


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16])
@pytest.mark.parametrize(
    ("largest", "stored"),
    [
        (1.0, Scalar.F16), (65504.0, Scalar.F16), (65519.0, Scalar.F16), (65520.0, Scalar.F32),
        (2**-14, Scalar.F16), (2**-15, Scalar.F32), (0.0, Scalar.F16), (np.inf, Scalar.F16),
    ],
)  # fmt: skip
def test_what_weights_are_stored_as(precision: Precision, largest: float, stored: Scalar) -> None:
    weights = np.full(1 << 16, largest / 1000, np.float32)
    weights[7] = -largest
    caps = DeviceCaps(cache_bytes=0)
    assert weight_storage(Weights(weights), precision, caps) is stored


# Measured constants: each kind of device has its own, and every one of them is asked.


OTHER = DeviceCaps(vendor="other", is_gpu=True, compute_units=4, cache_bytes=1 << 20)
KNOWN = attrs.evolve(OTHER, vendor="nvidia")


def measured(monkeypatch: pytest.MonkeyPatch, tuning: Tuning) -> None:
    """Let `OTHER` be a device that was measured."""
    monkeypatch.setitem(TABLE, "other", tuning)  # type: ignore[arg-type]


def test_reductions_are_cut_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = team_shape(OTHER, 10, 1000, lanes_first=False)
    assert before == team_shape(KNOWN, 10, 1000, lanes_first=False)
    alone = attrs.evolve(H200.reduction, few_steps=2000)
    measured(monkeypatch, attrs.evolve(H200, reduction=alone))
    assert team_shape(OTHER, 10, 1000, lanes_first=False).lanes == 1 < before.lanes
    assert team_shape(KNOWN, 10, 1000, lanes_first=False) == before


def test_steps_are_split_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = team_shape(OTHER, 16, 1 << 16, lanes_first=True, cut=1)
    assert before.parts > 4
    measured(monkeypatch, attrs.evolve(H200, reduction=attrs.evolve(H200.reduction, most_parts=4)))
    assert team_shape(OTHER, 16, 1 << 16, lanes_first=True, cut=1).parts == 4


def test_weights_are_rounded_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(np.full(1000, 1 / 3, np.float32))
    assert weight_storage(weights, Precision.F32_F16, OTHER) is Scalar.F32
    measured(monkeypatch, attrs.evolve(H200, rounded_weights=1000))
    assert weight_storage(weights, Precision.F32_F16, OTHER) is Scalar.F16
    assert weight_storage(weights, Precision.F32_F16, KNOWN) is Scalar.F32


def test_pixels_follow_from_how_many_invocations_keep_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pixels_per_invocation(OTHER, 4096, 64) == 4
    measured(monkeypatch, attrs.evolve(H200, busy_invocations=512))
    assert pixels_per_invocation(OTHER, 4096, 64) == 2


def test_products_are_split_where_tiles_were_measured() -> None:
    assert tuning_of(KNOWN).splits_products
    assert not tuning_of(OTHER).splits_products
    assert (
        attrs.evolve(tuning_of(OTHER), splits_products=True, pairs=H200.pairs, blocks=H200.blocks)
        == H200
    )
