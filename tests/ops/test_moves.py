"""Kernels that move data, between tensors as they lie inside a partition.

There channels are padded to a multiple of four, which `test_kernels` does not see: its tensors
all lie at a partition's edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.errors import AllocationError, InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, TensorSpec, Value
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ir.quant import Quantization
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, Precision, Temp
from tflgpu.lowering.rule import Unsupported
from tflgpu.lowering.stored_types import storage_of
from tflgpu.ops.argmax_pool import ArgmaxPoolAttrs, pack_options
from tflgpu.ops.base import Activation, Arg, Fields, OpDef, Operand, Padding, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as FileTensor
from tflgpu.tflite.write import write_model

from tests.ops.all_of import all_of
from tests.running import allocated, set_and_run

FAMILIES = (
    "argmax_pool", "concat", "gather", "one_hot", "pad", "reshape", "resize", "scatter", "segments",
    "shape", "slice", "space_depth", "split", "tile", "transpose",
)  # fmt: skip
_RULES = Target.plain(DeviceCaps(), Precision.F32).kernels.ops
MOVING = [
    op
    for family in FAMILIES
    for op in import_module(f"tflgpu.ops.{family}").OPS
    if op.name in _RULES
]
_GARBAGE = 77  # what a buffer holds before anything writes it


def _layout(value: Value) -> Layout:
    return Layout(value.shape, LayoutKind.C4, storage_of(value, Precision.F32, DeviceCaps()))


def _packed(array: Array, layout: Layout) -> Array:
    padded = np.zeros((layout.outer, layout.slices * 4), layout.storage.numpy)
    padded[:, : layout.channels] = array.reshape(layout.outer, layout.channels)
    return padded.reshape(-1)


def _run(case: SampleCase, caps: DeviceCaps) -> list[Array] | str:
    """The outputs as they lie in their buffers, padding included."""
    target = Target.plain(caps, Precision.F32)
    refused, rule = target.refusal(case.node), target.rule(case.node)
    if refused is not None:
        return refused.reason
    assert not isinstance(rule, Unsupported)
    low = Lowering(case.node, caps, Precision.F32, _layout)
    rule.build(low)
    memory: dict[int, Array] = {
        v.id: _packed(case.arrays[v.id], _layout(v)) for v in case.graph.inputs
    }
    for value in case.graph.outputs:
        layout = _layout(value)
        memory[value.id] = np.full(layout.elements, _GARBAGE, layout.storage.numpy)
    temps: dict[int, Array] = {}
    for dispatch in low.dispatches:
        assert len(dispatch.bindings) <= caps.max_bindings
        assert all(n <= m for n, m in zip(dispatch.groups, caps.max_groups, strict=True))
        arrays = []
        for binding in dispatch.bindings:
            if isinstance(binding, Temp):
                given = np.full(binding.layout.elements, _GARBAGE, binding.layout.storage.numpy)
                arrays.append(temps.setdefault(binding.id, given))
            else:
                arrays.append(binding.data if isinstance(binding, Constant) else memory[binding.id])
        interpret(dispatch.kernel, dispatch.groups, arrays)
    return [memory[v.id] for v in case.graph.outputs]


def _check(case: SampleCase, caps: DeviceCaps) -> None:
    results = _run(case, caps)
    if isinstance(results, str):
        pytest.skip(f"refused: {results}")
    tolerance: Tolerance = case.tolerance()
    for i, (value, got) in enumerate(zip(case.graph.outputs, results, strict=True)):
        layout = _layout(value)
        rows = got.reshape(layout.outer, layout.slices * 4)
        assert not rows[:, layout.channels :].any(), f"output {i}: padding lanes are not zero"
        tensor = rows[:, : layout.channels].reshape(value.shape).astype(value.dtype.numpy)
        tolerance.check(tensor, case.expected[i], f"output {i}")


@pytest.mark.parametrize("op", MOVING, ids=lambda op: op.name)
def test_padded_channels(op: OpDef) -> None:
    all_of({s.id: lambda s=s: _check(materialize(op, s), DeviceCaps()) for s in op.samples()})


@pytest.mark.parametrize("op", MOVING, ids=lambda op: op.name)
def test_small_device(op: OpDef) -> None:
    """Few workgroups along an axis, so that dispatches spread over two; few bindings."""
    caps = attrs.evolve(DeviceCaps(), max_groups=(2, 65535, 1), max_bindings=5)
    all_of({s.id: lambda s=s: _check(materialize(op, s), caps) for s in op.samples()})


def test_concat_of_eleven_needs_several_dispatches() -> None:
    for name in ("many_rows", "many_channels"):
        op = builtin_ops()["CONCATENATION"]
        case = materialize(op, next(s for s in op.samples() if s.id == name))
        low = Lowering(case.node, DeviceCaps(max_bindings=8), Precision.F32, _layout)
        rule = Target.plain(low.caps, Precision.F32).rule(case.node)
        assert not isinstance(rule, Unsupported)
        rule.build(low)
        assert len(low.dispatches) == 2


# What ops that move data refuse: malformed operands are errors that say which and why.


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
    ("STRIDED_SLICE", {"new_axis_mask": -1}, [x(5), c([0]), c([5]), c([1])], "more than 1 entr"),
    ("STRIDED_SLICE", {"new_axis_mask": 2}, [x(5), c([0]), c([5]), c([1])], "mask 0b10 .* 1 entr"),
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


# SLICE whose box lies outside: what of it is inside, where XNNPACK takes the type, else an error.


TYPES = {DType.F32: None, DType.I8: Quantization((0.1,), (3,)), DType.I32: None,
         DType.I16: Quantization((0.1,), (0,))}  # fmt: skip
BOXES = [(0, 99), (1, 99), (3, 2), (4, 1), (7, 2), (1, 2)]


def _result(interpreter: Any, dtype: DType) -> np.ndarray | None:
    try:
        # Cut to fewer rows than the file has, as by a run-time shape.
        interpreter.resize_tensor_input(0, (4, 3))
        interpreter.allocate_tensors()
    except (RuntimeError, AllocationError):
        return None
    set_and_run(interpreter, {0: np.arange(12).reshape(4, 3).astype(dtype.numpy)})
    return np.array(interpreter.get_tensor(3))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
def test_like_litert(dtype: DType) -> None:
    refused = 0
    for begin, size in BOXES:
        tensors = [
            FileTensor("x", (200, 3), dtype, quantization=TYPES[dtype]),
            FileTensor("begin", (2,), DType.I32, [begin, 1]), FileTensor("size", (2,), DType.I32,
            [size, 2]),
            FileTensor("y", (size, 2), dtype, quantization=TYPES[dtype]),
        ]  # fmt: skip
        content = write_model(
            ModelSpec(tensors, [OperatorSpec("SLICE", {}, (0, 1, 2), (3,))], (0,), (3,))
        )
        with (
            GpuDelegate(backend="cpu_ref") as delegate,
            Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
        ):
            found, wanted = _result(ours, dtype), _result(LiteRT(model_content=content), dtype)
        assert (found is None) == (wanted is None), (begin, size)
        refused += found is None
        if found is not None and wanted is not None:
            np.testing.assert_array_equal(found, wanted)
    assert refused == (0 if dtype in (DType.F32, DType.I8) else 5)


# Places outside a result, which a kernel cannot complain of: an error on the CPU, and never a
# number that looks like one on a device.


I32 = DType.I32
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def const(data: Any) -> FileTensor:
    array = np.asarray(data, np.int32)
    return FileTensor("c", array.shape, I32, array)


def model(name: str) -> tuple[bytes, list[Any]]:
    """An operator whose indices are an input, and good indices for it."""
    if name == "SCATTER_ND":
        given, operands, shape, good = [const([4, 3])], [1, 0, 2], (4, 3), [[3], [1]]
    elif name == "SPARSE_TO_DENSE":
        given = [const([5]), FileTensor("v", (2,), data=np.ones(2, np.float32)),
                 FileTensor("d", (), data=np.float32(0))]  # fmt: skip
        operands, shape, good = [1, 2, 3, 4], (5,), [3, 1]
    else:
        given, operands, shape, good = [const(4)], [0, 1, 2], (4, 3), [3, 1]
    indices = FileTensor("i", np.shape(good), I32)
    tensors = [FileTensor("x", (2, 3)), indices, *given, FileTensor("y", shape)]
    made = len(tensors) - 1
    inputs = [1] if name == "SPARSE_TO_DENSE" else [0, 1]
    return write_model(
        ModelSpec(tensors, [OperatorSpec(name, {}, operands, [made])], inputs, [made])
    ), good


def run(content: bytes, indices: Any, delegates: list[Any], side: str | None = None) -> Any:
    with allocated(
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=delegates, cpu_backend=side
        )
    ) as interpreter:
        if interpreter.get_input_details()[0]["index"] == 0:
            interpreter.set_tensor(0, X)
        set_and_run(interpreter, {1: np.asarray(indices, np.int32)})
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


NAMES = ["SCATTER_ND", "SPARSE_TO_DENSE", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_MAX"]


@pytest.mark.parametrize("name", NAMES)
def test_outside(name: str) -> None:
    content, good = model(name)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as kernels:
        wanted = run(content, good, [], "cpu_ref")
        np.testing.assert_array_equal(run(content, good, [kernels]), wanted)
        bad = np.array(good)
        bad.flat[0] = 7
        assert np.isnan(run(content, bad, [kernels])).all()
        with pytest.raises(InputError, match="7"):
            run(content, bad, [], "cpu_ref")


def test_a_negative_segment_is_left_out_and_a_negative_place_is_not() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as kernels:
        content, good = model("UNSORTED_SEGMENT_SUM")
        found = run(content, [good[0], -1], [kernels])
        assert found.sum() == X[0].sum()
        content, good = model("SCATTER_ND")
        assert np.isnan(run(content, [good[0], [-1]], [kernels])).all()


def test_constant_places_are_looked_at_when_a_model_is_opened() -> None:
    op = builtin_ops()["SCATTER_ND"]
    operands = [
        Operand(Spec((1, 1), I32), np.array([[4]], np.int32)), Operand(Spec((1, 3), DType.F32)),
        Operand(Spec((2,), I32), np.array([4, 3], np.int32)),
    ]  # fmt: skip
    with pytest.raises(ModelError, match=r"index 4 is outside \[0, 4\)"):
        op.infer(op.parse(Fields("SCATTER_ND", {})), operands)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((Arg((1 << 14, 1), I32, 0, 9), Arg((1 << 14, 8)), Arg.of([1 << 13, 8], I32)), "rows"),
        ((Arg.of(np.zeros((3, 0)), I32), Arg((3, 2)), Arg.of([2], I32)), "name no place"),
        ((Arg.of([[0]], DType.I64), Arg((1,), DType.I64), Arg.of([2], DType.I64)), "i64"),
    ],
)  # fmt: skip
def test_what_stays_on_the_cpu_says_why(args: tuple[Arg, ...], reason: str) -> None:
    op = builtin_ops()["SCATTER_ND"]
    node = materialize(op, Sample("s", {}, args)).node
    refused = Target.plain(DeviceCaps(), Precision.F32).refusal(node)
    assert refused is not None
    assert reason in refused.reason
