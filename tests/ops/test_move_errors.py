"""What ops that move data refuse: malformed operands are errors that say which and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, TensorSpec
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.argmax_pool import ArgmaxPoolAttrs, pack_options
from tflgpu.ops.base import Activation, Fields, Operand, Padding
from tflgpu.ops.registry import builtin_ops


def x(*shape: int, dtype: DType = DType.F32) -> Operand:
    """A runtime operand."""
    return Operand(TensorSpec(shape, dtype))


def c(values: Any, dtype: DType = DType.I32) -> Operand:
    """A constant operand."""
    data = np.asarray(values, dtype.numpy)
    return Operand(TensorSpec(data.shape, dtype), data)


REFUSED: list[tuple[str, Mapping[str, Any], Sequence[Operand | None], str]] = [
    ("RESHAPE", {}, [x(2, 3), c([-1, -1])], r"\[-1, -1\] has more than one -1"),
    ("RESHAPE", {}, [x(2, 3), c([4, -1])], r"\[2, 3\] has 6 elements.*\[4, -1\]"),
    ("RESHAPE", {}, [x(2, 3), c([5])], r"has 6 elements.*\[5\]"),
    ("RESHAPE", {}, [x(0, 3), c([5])], r"has 0 elements"),
    ("RESHAPE", {}, [x(2, 3), c([-2, 3])], r"size below -1"),
    ("RESHAPE", {}, [x(2, 3), x(2, dtype=DType.I32)], r"new shape \(operand 1\) must be a const"),
    ("RESHAPE", {}, [x(2, 3), c([6.0], DType.F32)], r"operand 1\) is f32"),
    ("RESHAPE", {}, [], "takes 1 to 2 operands, got 0"),
    ("RESHAPE", {}, [None, c([1])], "operand 0 is absent"),
    ("SQUEEZE", {"squeeze_dims": [1]}, [x(1, 3)], r"dimension 1 of \[1, 3\] is not 1"),
    ("SQUEEZE", {"squeeze_dims": [2]}, [x(1, 3)], "axis 2 is outside a rank of 2"),
    ("EXPAND_DIMS", {}, [x(2, 3), c(3)], "axis 3 is outside a rank of 3"),
    ("EXPAND_DIMS", {}, [x(2, 3), c([0, 1])], "has 2 elements"),
    ("CONCATENATION", {"axis": 4}, [x(2, 3)], "axis 4 is outside a rank of 2"),
    ("CONCATENATION", {"axis": 0}, [x(2, 3), x(2, 4)], r"operand 1 has shape \[2, 4\].*\[2, 3\]"),
    ("CONCATENATION", {"axis": 0}, [x(2, 3), x(2)], r"operand 1 has shape \[2\]"),
    ("CONCATENATION", {"axis": 0}, [x(2), x(2, dtype=DType.I32)], "operand 1 is i32"),
    ("PACK", {"values_count": 2}, [x(2, 3), x(3, 2)], r"operand 1 is f32\[3,2\]"),
    ("PACK", {"values_count": 3}, [x(2), x(2)], "takes 3 operands, got 2"),
    ("SPLIT", {"num_splits": 2}, [c(1), x(2, 3)], "does not divide by 2"),
    ("SPLIT", {"num_splits": 2}, [c(-3), x(2, 4)], "axis -3 is outside a rank of 2"),
    ("SPLIT", {"num_splits": 2}, [x(dtype=DType.I32), x(2, 4)], r"axis \(operand 0\) must be a c"),
    ("SPLIT_V", {"num_splits": 2}, [x(7), c([3, 3]), c(0)], r"\[3, 3\] do not add up.* 7"),
    ("SPLIT_V", {"num_splits": 2}, [x(7), c([-1, -1]), c(0)], "do not add up"),
    ("SPLIT_V", {"num_splits": 2}, [x(7), c([9, -1]), c(0)], "do not add up"),
    ("SPLIT_V", {"num_splits": 3}, [x(7), c([3, 4]), c(0)], "has 2 elements .* needs 3"),
    ("UNPACK", {"axis": 0, "num": 3}, [x(2, 3)], r"dimension 0 of \[2, 3\] is not num, 3"),
    ("SLICE", {}, [x(5, dtype=DType.I32), c([3]), c([4])], "begin 3 and size 4 are outside dim"),
    ("SLICE", {}, [x(5, 2), c([3, 0]), c([4, -1])], "begin 3 and size 4 are outside dimension 0"),
    ("SLICE", {}, [x(5), c([6]), c([-1])], "begin 6 and size -1"),
    ("SLICE", {}, [x(5), c([-1]), c([2])], "begin -1"),
    ("SLICE", {}, [x(5, 2), c([0]), c([2])], "needs 2"),
    ("STRIDED_SLICE", {}, [x(5), c([0]), c([5]), c([0])], "stride 0 is 0"),
    ("STRIDED_SLICE", {}, [x(5), c([0]), c([5, 1]), c([1])], "differ in length"),
    ("STRIDED_SLICE", {}, [x(5), c([0, 0]), c([1, 1]), c([1, 1])], "2 entries for .* rank 1"),
    ("STRIDED_SLICE", {"shrink_axis_mask": 1}, [x(5), c([5]), c([6]), c([1])], "begin 0 is 5"),
    ("STRIDED_SLICE", {"ellipsis_mask": 3}, [], "several bits"),
    ("GATHER", {"axis": 2}, [x(5, 3), c([0])], "axis 2 is outside"),
    ("GATHER", {}, [x(5, 3), c([5])], r"index 5 is outside \[0, 5\)"),
    ("GATHER", {}, [x(5, 3), x(2)], "indices .* f32"),
    ("GATHER", {"batch_dims": 1}, [x(5, 3), c([0])], "batch_dims 1 with axis 0"),
    ("GATHER", {"axis": 1, "batch_dims": 1}, [x(5, 3), c([[0]])], "1 batch dimensions"),
    ("GATHER_ND", {}, [x(5), c([[0, 1]])], "rank 1"),
    ("GATHER_ND", {}, [x(5, 3), c([[0, 3]])], r"index 3 is outside \[0, 3\)"),
    ("EMBEDDING_LOOKUP", {}, [c([7]), x(7, 3)], r"index 7 is outside \[0, 7\)"),
    ("TILE", {}, [x(2, 3), c([2])], "needs 2"),
    ("TILE", {}, [x(2), c([-1])], "must not be negative"),
    ("BROADCAST_TO", {}, [x(2, 3), c([3, 3])], r"\[2, 3\] does not broadcast to \[3, 3\]"),
    ("BROADCAST_TO", {}, [x(2, 3), c([3])], "does not broadcast"),
    ("REVERSE_V2", {}, [x(2, 3), c([1, -1])], "name one axis twice"),
    ("FILL", {}, [c([2, -3]), x()], r"\[2, -3\] must not be negative"),
    ("FILL", {}, [c([2]), x(2)], "rank 0 needed"),
    ("RANGE", {}, [c(0), c(5), c(-1)], "from 0 to 5 by -1 never ends"),
    ("RANGE", {}, [c(0), x(dtype=DType.I32), c(1)], r"limit \(operand 1\) must be a constant"),
    ("SHAPE", {"out_type": 3}, [x(2)], "out_type code 3"),
    ("ONE_HOT", {"axis": 3}, [x(2, dtype=DType.I32), c(3), x(), x()], "axis 3 is outside"),
    ("ONE_HOT", {"axis": -1}, [x(2), c(3), x(), x()], "indices .* f32"),
    ("TOPK_V2", {}, [x(2, 3), c(4)], r"k is 4 .*\[2, 3\]"),
    ("PAD", {}, [x(2, 3), c([[1, 1]])], r"shape \[1, 2\] for an operand of rank 2"),
    ("PAD", {}, [x(2), c([[-1, 1]])], "must not be negative"),
    ("PADV2", {}, [x(2), c([[1, 1]]), c(1)], r"i32\[\]; one f32 needed"),
    ("MIRROR_PAD", {"mode": 0}, [x(3), c([[3, 0]])], "REFLECT finds in 3 elements"),
    ("MIRROR_PAD", {"mode": 1}, [x(3), c([[0, 4]])], "SYMMETRIC finds in 3 elements"),
    ("MIRROR_PAD", {"mode": 2}, [], "unknown mode 2"),
    ("TRANSPOSE", {}, [x(2, 3), c([0, 0])], r"perm \[0, 0\] is no permutation"),
    ("TRANSPOSE", {}, [x(2, 3), c([0])], "no permutation of 2 axes"),
    ("TRANSPOSE", {}, [x(2, 3), c([0, 2])], "perm entry 2"),
    ("DEPTH_TO_SPACE", {"block_size": 2}, [x(1, 2, 2, 6)], "6 channels do not divide"),
    ("SPACE_TO_DEPTH", {"block_size": 2}, [x(1, 3, 2, 1)], "height 3 and width 2"),
    ("SPACE_TO_DEPTH", {"block_size": 0}, [], "block_size is 0"),
    ("SPACE_TO_DEPTH", {"block_size": 2}, [x(3, 2, 1)], "rank 4 needed"),
    ("BATCH_TO_SPACE_ND", {}, [x(3, 1, 1, 1), c([2, 2]), c([[0, 0]] * 2)], "batch 3"),
    ("BATCH_TO_SPACE_ND", {}, [x(4, 1, 1, 1), c([2, 2]), c([[2, 1], [0, 0]])], "leave nothing"),
    ("SPACE_TO_BATCH_ND", {}, [x(1, 3, 2, 1), c([2, 2]), c([[0, 0]] * 2)], r"\[3, 2\] do not"),
    ("RESIZE_BILINEAR", {}, [x(1, 2, 2, 1), c([0, 3])], r"is \[0, 3\]"),
    ("RESIZE_BILINEAR", {}, [x(2, 2, 1), c([2, 3])], "rank 4 needed"),
    ("RESIZE_BILINEAR", {"align_corners": True, "half_pixel_centers": True}, [],
     "exclude each other"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "operands", "message"),
    [pytest.param(*case, id=f"{i}-{case[0]}") for i, case in enumerate(REFUSED)],
)
def test_malformed_operands_are_named(
    name: str, fields: Mapping[str, Any], operands: Sequence[Operand | None], message: str
) -> None:
    op = builtin_ops()[name]
    with pytest.raises(ModelError, match=message) as caught:
        op.infer(op.parse(Fields(name, fields)), operands)
    assert name in str(caught.value)


def test_concatenation_of_integers_has_no_activation() -> None:
    op = builtin_ops()["CONCATENATION"]
    attributes = op.parse(Fields(op.name, {"axis": 0, "fused_activation_function": 1}))
    with pytest.raises(ModelError, match="fused activation RELU of i32"):
        op.infer(attributes, [x(3, dtype=DType.I32)])


def test_an_index_outside_is_an_input_error() -> None:
    table, bad = np.zeros((3, 2), np.float32), np.array([1, 3], np.int32)
    for name, arrays in (("GATHER", [table, bad]), ("EMBEDDING_LOOKUP", [bad, table])):
        op = builtin_ops()[name]
        with pytest.raises(InputError, match=r"index 3 is outside \[0, 3\)"):
            op.reference(op.parse(Fields(name, {})), arrays)


def test_mediapipe_options_round_trip() -> None:
    wanted = ArgmaxPoolAttrs(Padding.VALID, (2, 3), (4, 5), Activation.RELU6)
    fields = Fields("MaxUnpooling2D", {}, pack_options(wanted))
    assert builtin_ops()["MaxUnpooling2D"].parse(fields) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (b"", "0 bytes of custom options"),
        (bytes(32), "unknown padding 0"),
        (b"\1\0\0\0" + bytes(28), "must be positive"),
        (b"".join(n.to_bytes(4, "little") for n in (1, 2, 2, 2, 2, 4)), "fused activation 4"),
    ],
)
def test_mediapipe_options_are_checked(options: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        builtin_ops()["MaxPoolingWithArgmax2D"].parse(Fields("MaxPoolingWithArgmax2D", {}, options))


def test_reasons_of_kernels_name_what_is_wrong() -> None:
    graph = Graph()
    table = graph.add_value((5, 3), DType.F32, name="table")
    wide = graph.add_value((2,), DType.I64, name="rows")
    result = graph.add_value((2, 3), DType.F32, name="picked")
    attributes = builtin_ops()["GATHER"].parse(Fields("GATHER", {}))
    node = graph.add_node("GATHER", attributes, [table, wide], [result])
    target = Target.plain(DeviceCaps(), Precision.F32)
    answer = target.rule(node)
    assert isinstance(answer, Unsupported)
    assert answer.reason == "indices of GATHER are i64; i32 runs on the GPU"

    small = graph.add_value((5, 3), DType.I8, name="bytes")
    copy = graph.add_node("TILE", None, [small, graph.add_const(np.ones(2, np.int32))], [small])
    answer = target.rule(copy)
    assert isinstance(answer, Unsupported)
    assert answer.reason == "tensor bytes of TILE is i8; f32, f16, i32 and bool run on the GPU"
