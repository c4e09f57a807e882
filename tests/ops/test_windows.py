"""Kernels of windows and products between tensors as they lie inside a partition, where
channels are padded to a multiple of four, and for devices that make them choose differently."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from ai_edge_litert.interpreter import OpResolverType
from tflgpu import GpuDelegate, Interpreter
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.errors import AllocationError, ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, NewState, Precision, Temp
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.stored_types import storage_of
from tflgpu.ops import batch_matmul, depthwise, lstm, pool, transpose_conv
from tflgpu.ops.base import Activation, Fields, OpDef, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as FileTensor
from tflgpu.tflite.write import write_model

from tests.ops.all_of import all_of

#: A CPU, a GPU so small that invocations take several pixels each, and one so large that they
#: take one each.
DEVICES = {
    "cpu": DeviceCaps(),
    "small_gpu": DeviceCaps(
        is_gpu=True, compute_units=1, max_workgroup=64, max_groups=(8, 65535, 65535)
    ),
    "large_gpu": DeviceCaps(is_gpu=True, compute_units=132),
}
_RULES = Target.plain(DeviceCaps(), Precision.F32).kernels.ops
WINDOWED = [
    op
    for family in (batch_matmul, depthwise, lstm, pool, transpose_conv)
    for op in family.OPS
    if op.name in _RULES
]
_GARBAGE = 77.0  # what a buffer holds before anything writes it


def lowered(case: SampleCase, caps: DeviceCaps, precision: Precision) -> Lowering | None:
    """The node's kernels for tensors in C4, None where no rule takes it."""
    rule = Target.plain(caps, precision).rule(case.node)
    if not isinstance(rule, KernelRule):
        return None

    def layout(value: Value) -> Layout:
        return Layout(value.shape, LayoutKind.C4, storage_of(value, precision, caps))

    low = Lowering(case.node, caps, precision, layout)
    rule.build(low)
    return low


def run(case: SampleCase, low: Lowering) -> list[Array]:
    """Outputs and new states as they lie in their buffers: [outer, padded channels]."""
    memory: dict[object, Array] = {}
    for value in case.given:
        layout = low.layout(value)
        padded = np.zeros((layout.outer, layout.slices * 4), layout.storage.numpy)
        padded[:, : layout.channels] = case.arrays[value.id].reshape(layout.outer, -1)
        memory[value.id] = padded.reshape(-1)
    made = [(v.id, v) for v in case.graph.outputs] + [(("state", v.id), v) for v in case.variables]
    for key, value in made:
        layout = low.layout(value)
        memory[key] = np.full(layout.elements, _GARBAGE, layout.storage.numpy)
    for dispatch in low.dispatches:
        arrays = []
        for binding in dispatch.bindings:
            if isinstance(binding, Constant):
                arrays.append(binding.data)
            elif isinstance(binding, Temp):
                empty = np.full(binding.layout.elements, _GARBAGE, binding.layout.storage.numpy)
                arrays.append(memory.setdefault(("temp", binding.id), empty))
            elif isinstance(binding, NewState):
                arrays.append(memory["state", binding.variable.id])
            else:
                arrays.append(memory[binding.id])
        interpret(dispatch.kernel, dispatch.groups, arrays)
    return [memory[key].reshape(low.layout(v).outer, low.layout(v).slices * 4) for key, v in made]


@pytest.mark.parametrize("precision", [Precision.F32, Precision.F16], ids=lambda p: str(p.value))
@pytest.mark.parametrize("caps", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("op", WINDOWED, ids=lambda op: op.name)
def test_kernel_in_c4_agrees_with_the_reference(
    op: OpDef, caps: DeviceCaps, precision: Precision
) -> None:
    all_of({s.id: partial(_check_in_c4, op, s, caps, precision) for s in op.samples()})


def _check_in_c4(op: OpDef, sample: Sample, caps: DeviceCaps, precision: Precision) -> None:
    half = precision is Precision.F16
    case = materialize(op, sample, half=half)
    low = lowered(case, caps, precision)
    assert low is not None
    for got, want in zip(run(case, low), [*case.expected, *case.states], strict=True):
        channels = want.shape[-1]
        result = got[:, :channels].astype(np.float32).reshape(want.shape)
        case.tolerance(half=half).check(result, want)
        assert not got[:, channels:].any(), "padding lanes must be zero"


def kernels(op: OpDef, sample_id: str, device: str) -> list[str]:
    sample = next(s for s in op.samples() if s.id == sample_id)
    low = lowered(materialize(op, sample), DEVICES[device], Precision.F32)
    assert low is not None
    return [d.kernel.name for d in low.dispatches]


def test_the_device_and_the_sizes_choose_the_kernel() -> None:
    (matmul,) = batch_matmul.OPS
    assert kernels(matmul, "larger", "cpu") == ["batch_matmul"]
    assert kernels(matmul, "larger", "large_gpu") == ["batch_matmul_tiled"]
    assert kernels(matmul, "row", "large_gpu") == ["batch_matmul"]
    average = pool.OPS[0]
    assert kernels(average, "global", "large_gpu") == ["average_pool_2d_team"]
    assert kernels(average, "halves", "large_gpu") == ["average_pool_2d"]


def test_a_small_device_makes_fewer_invocations_do_more() -> None:
    (op,) = depthwise.OPS
    sample = next(s for s in op.samples() if s.id == "wide")
    groups = {}
    for device in ("cpu", "large_gpu"):
        low = lowered(materialize(op, sample), DEVICES[device], Precision.F32)
        assert low is not None
        groups[device] = low.dispatches[0].groups[0]
    assert groups["cpu"] < groups["large_gpu"]


# What convolutions, pooling, products and recurrent ops refuse, and what they say about it.


ONE = {"stride_h": 1, "stride_w": 1}
VALID = {**ONE, "padding": 1}
POOL = {**VALID, "filter_height": 2, "filter_width": 2}
UP = {"stride_h": 2, "stride_w": 2}

Shapes = Sequence[Sequence[int] | None]


def infer(
    op: str, fields: Mapping[str, Any], shapes: Shapes, custom: bytes = b""
) -> list[TensorSpec]:
    """Parse and infer with f32 operands of these shapes; for TRANSPOSE_CONV the first "shape" is
    the contents of the shape operand."""
    definition = builtin_ops()[op]
    operands = [
        None if shape is None else Operand(TensorSpec(tuple(shape), DType.F32)) for shape in shapes
    ]
    if op == "TRANSPOSE_CONV" and shapes[0] is not None:
        data = np.array(shapes[0], np.int32)
        operands[0] = Operand(TensorSpec(data.shape, DType.I32), data)
    return definition.infer(definition.parse(Fields(op, fields, custom)), operands)


IMAGE, FILTER = (1, 5, 5, 4), (6, 3, 3, 4)
DEPTHWISE = (1, 3, 3, 8)


@pytest.mark.parametrize(
    ("op", "fields", "shapes", "message"),
    [
        ("CONV_2D", ONE, [IMAGE], "takes 2 to 3 operands .input, filter, bias., got 1"),
        ("CONV_2D", ONE, [IMAGE, None], "the filter is absent"),
        ("CONV_2D", ONE, [(5, 5, 4), FILTER], r"the input has shape \[5, 5, 4\], not rank 4"),
        ("CONV_2D", ONE, [IMAGE, (6, 36)], r"the filter has shape \[6, 36\], not rank 4"),
        ("CONV_2D", ONE, [IMAGE, (6, 3, 3, 3)], "filter has 3 channels, which do not divide .* 4"),
        ("CONV_2D", ONE, [IMAGE, (5, 3, 3, 2)], "5 output channels do not divide into 2 groups"),
        ("CONV_2D", ONE, [IMAGE, FILTER, (5,)], r"the bias has shape \[5\] for 6 output channels"),
        ("CONV_2D", ONE, [IMAGE, (6, 0, 3, 4)], "the filter of shape .* is empty"),
        ("CONV_2D", {"stride_w": 1}, [IMAGE, FILTER], "stride_h is 0, must be >= 1"),
        ("CONV_2D", {**ONE, "dilation_w_factor": 0}, [IMAGE, FILTER], "dilation_w_factor is 0"),
        ("CONV_2D", {**ONE, "padding": 2}, [IMAGE, FILTER], "unknown padding code 2"),
        ("CONV_2D", VALID, [(1, 1, 5, 4), FILTER], "filter of height 3 .* input of height 1"),
        (
            "CONV_2D",
            {**VALID, "dilation_w_factor": 3},
            [IMAGE, FILTER],
            r"filter of width 3 \(dilated 7\) on an input of width 5 with VALID padding",
        ),
        ("DEPTHWISE_CONV_2D", ONE, [IMAGE, (2, 3, 3, 4)], "it must start with 1"),
        ("DEPTHWISE_CONV_2D", ONE, [IMAGE, (1, 3, 3, 6)], "6 channels are no multiple .* 4"),
        ("DEPTHWISE_CONV_2D", ONE, [IMAGE, DEPTHWISE, (4,)], r"bias has shape \[4\] for 8"),
        ("MAX_POOL_2D", {**POOL, "filter_width": 0}, [IMAGE], "filter_width is 0"),
        ("AVERAGE_POOL_2D", {**POOL, "filter_height": 6}, [IMAGE], "leaves no output"),
        ("L2_POOL_2D", POOL, [IMAGE, IMAGE], r"takes 1 operands \(input\), got 2"),
        ("TRANSPOSE_CONV", UP, [(1, 10, 10), FILTER, IMAGE], "output shape has 3 elements"),
        ("TRANSPOSE_CONV", UP, [(1, 10, 10, 5), FILTER, IMAGE], r"\[1, 10, 10, 5\] does not fit"),
        ("TRANSPOSE_CONV", UP, [(2, 10, 10, 6), FILTER, IMAGE], "does not fit a batch of 1"),
        ("TRANSPOSE_CONV", UP, [(1, 0, 10, 6), FILTER, IMAGE], "does not fit"),
        (
            "TRANSPOSE_CONV",
            UP,
            [(1, 10, 10, 6), FILTER, (1, 5, 5, 3)],
            "filter has 4 input channels, the input 3",
        ),
        ("FULLY_CONNECTED", {}, [(2, 7), (3, 5)], r"\[2, 7\] is not made of rows of 5"),
        ("FULLY_CONNECTED", {"keep_num_dims": True}, [(5, 2), (3, 5)], "needs 5 as the last"),
        ("FULLY_CONNECTED", {}, [(2, 5), (3, 5, 1)], "the weights has shape .* not rank 2"),
        ("FULLY_CONNECTED", {}, [(2, 5), (3, 5), (2,)], r"bias has shape \[2\] for 3"),
        ("BATCH_MATMUL", {}, [(2, 3, 4), (2, 5, 6)], "matrices of 3x4 and 5x6"),
        ("BATCH_MATMUL", {"adj_x": True}, [(2, 3, 4), (2, 4, 6)], "matrices of 4x3 and 4x6"),
        ("BATCH_MATMUL", {}, [(4,), (4, 6)], r"the left operand \[4\] is no matrix"),
        ("BATCH_MATMUL", {}, [(2, 3, 4), (3, 4, 6)], "do not broadcast"),
    ],
)
def test_malformed_operands_and_options_are_named(
    op: str, fields: Mapping[str, Any], shapes: Shapes, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        infer(op, fields, shapes)


def test_well_formed_operands_are_taken() -> None:
    (spec,) = infer("CONV_2D", ONE, [IMAGE, FILTER, (6,)])
    assert spec == TensorSpec((1, 5, 5, 6), DType.F32)
    (spec,) = infer("CONV_2D", VALID, [IMAGE, FILTER, None])
    assert spec.shape == (1, 3, 3, 6)
    (spec,) = infer("TRANSPOSE_CONV", UP, [(1, 10, 10, 6), FILTER, IMAGE])
    assert spec.shape == (1, 10, 10, 6)


def test_types_without_numbers_are_refused() -> None:
    definition = builtin_ops()["CONV_2D"]
    flags = Operand(TensorSpec(IMAGE, DType.BOOL))
    weights = Operand(TensorSpec(FILTER, DType.F32))
    with pytest.raises(ModelError, match=r"the input takes .* not bool"):
        definition.infer(definition.parse(Fields("CONV_2D", ONE)), [flags, weights])


@pytest.mark.parametrize("data", [DType.U8, DType.I8, DType.I16])
@pytest.mark.parametrize("weights", [DType.F16, DType.F32])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("CONV_2D", [(1, 3, 3, 2), (4, 1, 1, 2)]),
        ("DEPTHWISE_CONV_2D", [(1, 3, 3, 2), (1, 1, 1, 2)]),
        ("FULLY_CONNECTED", [(2, 3), (5, 3)]),
        ("CONV_3D", [(1, 2, 3, 3, 2), (1, 1, 1, 2, 4)]),
    ],
)
def test_stored_numbers_meet_no_floats(name: str, shapes: Any, data: DType, weights: DType) -> None:
    op = builtin_ops()[name]
    fields = {"stride_w": 1, "stride_h": 1, "stride_d": 1}
    operands = [Operand(TensorSpec(s, t)) for s, t in zip(shapes, (data, weights), strict=True)]
    with pytest.raises(ModelError, match=f"takes .*, not {weights.value}"):
        op.infer(op.parse(Fields(name, fields)), operands)


@pytest.mark.parametrize(
    ("op", "fields", "message"),
    [
        ("FULLY_CONNECTED", {"fused_activation_function": 5}, "SIGN_BIT"),
        ("FULLY_CONNECTED", {"weights_format": 1}, "shuffled 4x16 int8"),
    ],
)
def test_options_beyond_tflgpu_are_unsupported_not_malformed(
    op: str, fields: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        builtin_ops()[op].parse(Fields(op, fields))


def test_an_output_shape_that_the_model_computes_is_unsupported() -> None:
    definition = builtin_ops()["TRANSPOSE_CONV"]
    attributes = definition.parse(Fields("TRANSPOSE_CONV", UP))
    shape = Operand(TensorSpec((4,), DType.I32))
    others = [Operand(TensorSpec(s, DType.F32)) for s in (FILTER, IMAGE)]
    with pytest.raises(UnsupportedError, match="only known while the model runs"):
        definition.infer(attributes, [shape, *others])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (b"\x01\x00\x00\x00", "4 bytes of options"),
        (struct.pack("<3i", 0, 2, 2), "unknown padding code 0"),
        (struct.pack("<3i", 1, 2, 0), "strides 0 and 2 must be at least 1"),
    ],
)
def test_custom_options_of_the_transposed_convolution(options: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        infer("Convolution2DTransposeBias", {}, [IMAGE, FILTER, (6,)], options)


def lstm_shapes(**changes: Any) -> list[Sequence[int] | None]:
    """Operands of a full LSTM cell: batch 2, 5 inputs, 7 cells; changed by position ("at7")."""
    shapes: list[Any] = [(2, 5), *[(7, 5)] * 4, *[(7, 7)] * 4, *[None] * 3, *[(7,)] * 4]
    shapes += [None, None, (2, 7), (2, 7), *[None] * 4]
    for key, value in changes.items():
        shapes[int(key[2:])] = value
    return shapes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at2": None}, r"the forget weights \(operand 2\) is absent"),
        ({"at1": (7, 4)}, r"the input weights \(operand 1\) has shape \[7, 4\], not \[7, 5\]"),
        ({"at1": None}, r"the input recurrent weights \(operand 5\) has no use"),
        ({"at8": (7, 6)}, r"the output recurrent weights \(operand 8\)"),
        ({"at10": (7,)}, r"the input gate's peephole \(operand 9\) is absent"),
        ({"at13": (6,)}, r"the forget bias \(operand 13\)"),
        ({"at17": (7,)}, "there are no projection weights"),
        ({"at16": (3, 7)}, r"the projection weights \(operand 16\)"),
        ({"at18": (2, 6)}, r"the output state \(operand 18\)"),
        ({"at19": (3, 7)}, r"the cell state \(operand 19\)"),
        ({"at21": (7,)}, r"the input layer norm \(operand 20\) is absent"),
    ],
)
def test_lstm_names_the_operand_that_does_not_fit(changes: Any, message: str) -> None:
    assert infer("LSTM", {}, lstm_shapes())[0].shape == (2, 7)
    with pytest.raises(ModelError, match=message):
        infer("LSTM", {}, lstm_shapes(**changes))


@pytest.mark.parametrize("option", ["cell_clip", "proj_clip"])
@pytest.mark.parametrize("value", [-0.5, float("nan")])
def test_a_clip_that_is_no_limit(option: str, value: float) -> None:
    with pytest.raises(ModelError, match=rf"LSTM: option {option} is .*, must be >= 0"):
        infer("LSTM", {option: value}, lstm_shapes())


def test_basic_lstm() -> None:
    tanh = Activation.TANH.value
    fields = {"kernel_type": 1, "fused_activation_function": tanh}
    shapes = [(2, 5), (2, 3), (12, 8), (12,), (2, 3)]
    assert [s.shape for s in infer("LSTM", fields, shapes)] == [(2, 3), (2, 3), (2, 8), (2, 12)]
    with pytest.raises(ModelError, match=r"the weights of shape \[12, 7\] should be \[12, 8\]"):
        infer("LSTM", fields, [*shapes[:2], (12, 7), *shapes[3:]])
    for wrong, message in (
        ({"kernel_type": 2}, "unknown kernel type 2"),
        ({"fused_activation_function": 1}, "has TANH as its activation, not RELU"),
        ({"cell_clip": 1.0}, "clips nothing"),
    ):
        with pytest.raises(ModelError, match=message):
            infer("LSTM", {**fields, **wrong}, shapes)


# Convolutions whose window fits nowhere on the image: an empty result, as by LiteRT's own
# kernels.


SIZES = [(2, 5), (1, 5), (5, 1), (2, 2), (1, 1), (4, 3)]


def _model(op: str, stride: int) -> bytes:
    """A filter of 3 x 3, which is an input: XNNPACK, which refuses such images, takes constants
    only."""
    depthwise = op == "DEPTHWISE_CONV_2D"
    shape = (1 if depthwise else 2, 3, 3, 2)
    fields = {"padding": 1, "stride_h": stride, "stride_w": stride, "fused_activation_function": 1}
    tensors = [
        FileTensor("x", (1, 5, 5, 2)), FileTensor("w", shape),
        FileTensor("b", (2,), DType.F32, np.ones(2, np.float32)), FileTensor("y", (1, 3, 3, 2)),
    ]  # fmt: skip
    if depthwise:
        fields["depth_multiplier"] = 1
    return write_model(ModelSpec(tensors, [OperatorSpec(op, fields, [0, 1, 2], [3])], [0, 1], [3]))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_the_result_is_empty(op: str, stride: int) -> None:
    content, empty = _model(op, stride), 0
    theirs = LiteRT(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    with (
        GpuDelegate(backend="cpu_ref") as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        for height, width in SIZES:
            shapes: list[tuple[int, ...] | None] = []
            for interpreter, error in ((theirs, RuntimeError), (ours, AllocationError)):
                interpreter.resize_tensor_input(0, (1, height, width, 2))
                try:
                    interpreter.allocate_tensors()
                except error:
                    shapes.append(None)
                    continue
                for d in interpreter.get_input_details():
                    interpreter.set_tensor(d["index"], np.ones(d["shape"], np.float32))
                interpreter.invoke()
                shapes.append(interpreter.get_tensor(3).shape)
            assert shapes[0] == shapes[1], (height, width)
            empty += 0 in (shapes[0] or ())
    assert empty >= 2
