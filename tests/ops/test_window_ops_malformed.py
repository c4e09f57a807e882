"""What convolutions, pooling, products and recurrent ops refuse, and what they say about it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Activation, Fields, Operand
from tflgpu.ops.registry import builtin_ops

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
