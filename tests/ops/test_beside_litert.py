"""What the newest versions of old ops add: 16-bit floats, and whole numbers of 16 bits. (Quantized
tensors: see tests/quantized.)"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu import Interpreter
from tflgpu.errors import InputError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, allocated, first_results, set_and_run, side_by_side
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F16, I16 = DType.F16, DType.I16
#: Op, version, operands, their type and the result's.
CASES = [
    ("ADD", 6, 2, F16, F16), ("MUL", 8, 2, F16, F16), ("GELU", 3, 1, F16, F16),
    ("EQUAL", 5, 2, I16, DType.BOOL),
]  # fmt: skip


@pytest.mark.parametrize(("name", "version", "count", "dtype", "made"), CASES)
@pytest.mark.parametrize("side", ["cpu_ref", "litert"])
def test_as_litert(
    name: str, version: int, count: int, dtype: DType, made: DType, side: str
) -> None:
    assert builtin_ops()[name].file.max_version == version
    shape = (2, 3, 7)
    tensors = [TensorSpec(f"x{i}", shape, dtype) for i in range(count)]
    operator = OperatorSpec(name, {}, list(range(count)), [count], version=version)
    content = write_model(
        ModelSpec([*tensors, TensorSpec("y", shape, made)], [operator], list(range(count)), [count])
    )
    rng = np.random.default_rng(5)
    xs = [rng.uniform(-3, 3, shape).astype(dtype.numpy) for _ in range(count)]

    def run(interpreter: Any) -> Any:
        allocate_and_run(interpreter, xs)
        return interpreter.get_tensor(count)

    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend=side
    ) as ours:
        found = run(ours)
    wanted = run(litert.Interpreter(model_content=content))
    assert found.dtype == wanted.dtype == made.numpy
    # One unit of 16 bits where a function is approximated.
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3 * (name == "GELU"),
        atol=1e-3 * (name == "GELU"),
    )  # fmt: skip
    assert len(np.unique(wanted)) > 1


# Constants of types that converters do not write, and TFLite's kernels read.


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def model(op: str, fields: dict[str, Any], made: tuple[int, ...], constants: list[Array]) -> bytes:
    """One op of numbers [2, 3, 4] and constants; SPLIT has them the other way round and two
    results."""
    consts = [
        TensorSpec(f"c{i}", c.shape, DType.from_numpy(c.dtype), c) for i, c in enumerate(constants)
    ]
    tensors = [TensorSpec("x", X.shape), TensorSpec("y", made), TensorSpec("z", made), *consts]
    operands = [0, *range(3, len(tensors))]
    results = [1, 2] if op == "SPLIT" else [1]
    operator = OperatorSpec(op, fields, operands[::-1] if op == "SPLIT" else operands, results)
    return write_model(ModelSpec(tensors, [operator], [0], results))


def results(interpreter: Any) -> list[Array]:
    return first_results(interpreter, {0: X})


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    ("op", "made", "constants"),
    [
        ("TRANSPOSE", (4, 2, 3), [np.array([2, 0, 1], np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2, np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2**32 - 1, np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2**64 - 1, np.uint64)]),
        ("PAD", (3, 4, 4), [np.array([[1, 0], [0, 1], [0, 0]], np.bool_)]),
    ],
)
def test_what_litert_reads_is_read(
    op: str, made: tuple[int, ...], constants: list[Array], device: int
) -> None:
    content = model(op, {"num_splits": 2} if op == "SPLIT" else {}, made, constants)
    theirs = results(litert.Interpreter(model_content=content))
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=device, cpu_backend="cpu_ref")
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[delegate]
    ) as interpreter:
        ours = results(interpreter)
        assert not interpreter.report.refusals
    assert [o.shape for o in ours] == [made] * len(ours)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint16, np.uint64])
def test_a_permutation_of_other_bits_is_refused(kind: Any) -> None:
    content = model("TRANSPOSE", {}, (4, 2, 3), [np.array([2, 0, 1], kind)])
    delegate = tflgpu.GpuDelegate(backend="cpu_ref")
    with (
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
        pytest.raises(tflgpu.TflgpuError, match=r"TRANSPOSE: perm \(operand 1\) is .* not a whole"),
    ):
        interpreter.allocate_tensors()


# What the types of a file's tensors decide, and no option: positions of TOPK_V2, steps of
# RESIZE_BILINEAR.


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("index", [DType.I16, DType.I32])
def test_positions(index: DType, device: int) -> None:
    content = small_model(
        {
            "x": (3, 7),
            "k": tensor_of((), DType.I32, np.int32(4)),
            "values": (3, 4),
            "places": tensor_of((3, 4), index),
        },
        ("values, places = TOPK_V2(x, k)", {}, {"version": 3}),
    )
    x = np.random.default_rng(3).uniform(-3, 3, (3, 7)).astype(np.float32)
    for wanted, got in zip(*side_by_side(content, [x], device=device), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("fields", [{}, {"align_corners": True}, {"half_pixel_centers": True}])
def test_places_between_pixels(fields: dict[str, bool], device: int) -> None:
    """Rounded to 1/1024 of a pixel, which is up to 50 steps of 16 bits in these images."""
    quant = Quantization((0.25 / 4096,), (0,), 0)
    content = small_model(
        {
            "x": tensor_of((2, 3, 3, 5), DType.I16, quantization=quant),
            "size": tensor_of((2,), DType.I32, np.int32([7, 9])),
            "y": tensor_of((2, 7, 9, 5), DType.I16, quantization=quant),
        },
        ("y = RESIZE_BILINEAR(x, size)", fields, {"version": 4}),
    )
    x = np.random.default_rng(3).integers(-30000, 30000, (2, 3, 3, 5)).astype(np.int16)
    ((wanted, got),) = zip(*side_by_side(content, [x], device=device), strict=True)
    assert np.abs(got.astype(np.int64) - wanted).max() <= 1


# Whole numbers of 8 and 16 bits that have no scale: what LiteRT computes on them, and products of
# complex numbers.


I8, U8, C64 = DType.I8, DType.U8, DType.C64
SMALL_CASES = [
    *((op, I16, I16) for op in ("ADD", "MUL", "FLOOR_DIV", "FLOOR_MOD")),
    *((op, I8, I8) for op in ("FLOOR_DIV", "FLOOR_MOD")),
    *((op, dtype, dtype) for op in ("MAXIMUM", "MINIMUM") for dtype in (I8, U8, I16)),
    *((op, I16, DType.BOOL) for op in ("EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")),
    ("NEG", I8, I8), ("NEG", I16, I16), ("ABS", I16, I16), ("MUL", C64, C64),
]  # fmt: skip


def beside_plain_kernels(content: bytes, xs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """What LiteRT's kernels make of a model's inputs, and what the references do."""
    return side_by_side(content, xs, litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


@pytest.mark.parametrize(("op", "dtype", "made"), SMALL_CASES)
def test_small_as_litert(op: str, dtype: DType, made: DType) -> None:
    shapes = [(3, 5)] if op in ("NEG", "ABS") else [(3, 5), (5,)]
    tensors = [TensorSpec(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    operands = list(range(len(shapes)))
    operator = OperatorSpec(
        op, {}, operands, [len(shapes)], version=builtin_ops()[op].file.max_version
    )
    content = write_model(
        ModelSpec([*tensors, TensorSpec("y", (3, 5), made)], [operator], operands, [len(shapes)])
    )
    rng = np.random.default_rng(7)
    xs = [rng.integers(-90, 90, s).astype(dtype.numpy) for s in shapes]
    if dtype is C64:
        xs = [(x + 1j * x[::-1]).astype(np.complex64) for x in xs]
    elif len(xs) == 2:
        xs[0][0, :2] = xs[1][:2]  # equal ones
        xs[1][xs[1] == 0] = 7
        if op in ("ADD", "MUL"):
            xs[0][1] = 32767  # wraps around
    (wanted,), (got,) = beside_plain_kernels(content, xs)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [I8, I16])
@pytest.mark.parametrize("op", ["FLOOR_DIV", "FLOOR_MOD"])
def test_scales_that_litert_does_not_look_at(op: str, dtype: DType) -> None:
    quant = Quantization((0.25,), (0,)), Quantization((0.5,), (3 if dtype is I8 else 0,))
    x = np.arange(-49, 56, 7).astype(dtype.numpy).reshape(3, 5)
    y = np.array([-9, 4, -5, 7, 11], dtype.numpy)
    (wanted,), (got,) = beside_plain_kernels(
        small_model(
            {
                "x": tensor_of((3, 5), dtype, None, quant[0]),
                "y": tensor_of((5,), dtype, None, quant[1]),
                "z": tensor_of((3, 5), dtype, None, quant[0]),
            },
            (f"z = {op}(x, y)", {}, {"version": builtin_ops()[op].file.max_version}),
        ),
        [x, y],
    )
    np.testing.assert_array_equal(got, wanted)
    assert got[0, 0] == (5 if op == "FLOOR_DIV" else -4)


@pytest.mark.parametrize("dtype", [I8, U8, I16])
@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_pools_without_a_scale(op: str, dtype: DType) -> None:
    fields = {"stride_h": 1, "stride_w": 2, "filter_height": 2, "filter_width": 3}
    low = 0 if dtype is U8 else -128
    x = np.random.default_rng(2).integers(low, low + 256, (1, 3, 7, 3)).astype(dtype.numpy)
    (wanted,), (got,) = beside_plain_kernels(
        small_model(
            {"x": tensor_of((1, 3, 7, 3), dtype), "y": tensor_of((1, 3, 4, 3), dtype)},
            (f"y = {op}(x)", fields, {"version": 3}),
        ),
        [x],
    )
    np.testing.assert_array_equal(got, wanted)


# Results of LiteRT's kernels that no definition of the operator gives: what ours are there, and
# that they are so. Each was a difference that mutated models showed.


KERNELS = litert.OpResolverType
_LARGEST = np.finfo(np.float32).max


def _litert(content: bytes, x: Array, kernels: Any, before: float) -> Array:
    """LiteRT's result, in memory that has ``before`` in it when the run begins."""
    interpreter = allocated(
        litert.Interpreter(
            model_content=content, experimental_op_resolver_type=kernels, num_threads=1
        )
    )
    interpreter.set_tensor(0, x)
    (output,) = interpreter.get_output_details()
    interpreter.tensor(output["index"])()[...] = before
    interpreter.invoke()
    return interpreter.get_tensor(output["index"])


def _ours(content: bytes, x: Array, device: int | None) -> Array:
    """Ours on a device, or where LiteRT is the CPU side (None)."""
    with contextlib.ExitStack() as stack:
        delegates = []
        if device is not None:
            made = tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False)
            delegates.append(stack.enter_context(made))
        one = tflgpu.Interpreter(
            model_content=content, experimental_delegates=delegates, cpu_backend="litert"
        )
        stack.enter_context(one).allocate_tensors()
        set_and_run(one, {0: x})
        return one.get_tensor(one.get_output_details()[0]["index"])


@pytest.mark.parametrize(("begin", "stride"), [(0, -1), (2, -3), (-1, -1), (1, -(2**31))])
def test_a_dimension_that_is_shrunk_with_a_negative_stride(begin: int, stride: int) -> None:
    """LiteRT's STRIDED_SLICE takes no step then, and leaves its result as the memory was; one
    element is taken, whatever the stride."""
    tensors = [
        TensorSpec("x", (3, 4)),
        TensorSpec("begin", (2,), DType.I32, [begin, 0]),
        TensorSpec("end", (2,), DType.I32, [begin + 1, 4]),
        TensorSpec("strides", (2,), DType.I32, [stride, 1]),
        TensorSpec("y", (4,)),
    ]
    operator = OperatorSpec("STRIDED_SLICE", {"shrink_axis_mask": 1}, (0, 1, 2, 3), (4,))
    content = write_model(ModelSpec(tensors, [operator], (0,), (4,)))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    doubled = ModelSpec(
        [*tensors, TensorSpec("z", (4,))],
        [operator, OperatorSpec("ADD", {}, (4, 4), (5,))],
        (0,),
        (5,),
    )
    np.testing.assert_array_equal(_ours(write_model(doubled), x, None), 2 * x[begin])
    for kernels in (KERNELS.AUTO, KERNELS.BUILTIN_REF):
        for before in (-7.0, 5.5):
            np.testing.assert_array_equal(_litert(content, x, kernels, before), [before] * 4)
    for device in (0, 1, None):
        np.testing.assert_array_equal(_ours(content, x, device), x[begin])


@pytest.mark.parametrize("activation", [0, 1], ids=["none", "relu"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
def test_infinity_after_relu(dtype: DType, activation: int) -> None:
    """LiteRT's own kernels clamp to the largest float, also where RELU has no upper end; XNNPACK
    does not, which has no DEPTHWISE_CONV_2D of floats and 8-bit weights."""
    quant = Quantization((0.5,) * 3, (0,) * 3, 3) if dtype is DType.I8 else None
    fields = {
        "padding": 1, "stride_w": 1, "stride_h": 1, "depth_multiplier": 1, "dilation_w_factor": 1,
        "dilation_h_factor": 1, "fused_activation_function": activation,
    }  # fmt: skip
    content = small_model(
        {
            "x": (1, 2, 2, 3),
            "w": tensor_of((1, 1, 1, 3), dtype, np.ones((1, 1, 1, 3), dtype.numpy), quant),
            "b": tensor_of((3,), data=np.array([np.inf, 0, 0], np.float32)),
            "y": (1, 2, 2, 3),
        },
        ("y = DEPTHWISE_CONV_2D(x, w, b)", fields),
    )
    x = np.ones((1, 2, 2, 3), np.float32)
    assert _litert(content, x, KERNELS.BUILTIN_REF, 0)[0, 0, 0, 0] == _LARGEST
    by_default = _litert(content, x, KERNELS.AUTO, 0)[0, 0, 0, 0]
    assert by_default == (np.inf if dtype is DType.F32 else _LARGEST)
    for device in (0, 1):
        assert _ours(content, x, device)[0, 0, 0, 0] == np.inf


# Reductions over no elements, next to LiteRT: what the kernels begin with.


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pytest.mark.parametrize("op", ["REDUCE_MAX", "REDUCE_MIN", "SUM", "REDUCE_PROD"])
def test_of_no_elements(op: str, dtype: DType) -> None:
    content = small_model(
        {
            "x": tensor_of((2, 0, 3), dtype),
            "axes": tensor_of((1,), DType.I32, [1]),
            "y": tensor_of((2, 1, 3), dtype),
        },
        (f"y = {op}(x, axes)", {"keep_dims": True}),
    )
    found = []
    for module in (tflgpu, litert):
        interpreter = allocated(module.Interpreter(model_content=content))
        interpreter.invoke()
        found.append(interpreter.get_tensor(2))
    np.testing.assert_array_equal(*found)


# DENSIFY of a sparse constant, which a sample cannot have: held against LiteRT.


SHAPE = (5, 6)


def model_densify(dtype: DType) -> bytes:
    """``x + densified``, and the densified constant itself."""
    # Rows in compressed form: 2, 0, 1, 3 and 1 numbers, in these columns.
    segments = np.array([0, 2, 2, 3, 6, 7], np.uint8)
    columns = np.array([0, 5, 3, 1, 2, 4, 0], np.uint8)
    rows = Sparsity((0, 1), (), (Level(5), Level(None, segments, columns)))
    values = np.arange(1, 8).astype(dtype.numpy)
    return small_model(
        {
            "s": tensor_of(SHAPE, dtype, values, sparsity=rows),
            "d": tensor_of(SHAPE, dtype),
            "x": SHAPE,
            "y": SHAPE,
            "f": SHAPE,
        },
        "d = DENSIFY(s)",
        ("f = CAST(d)", {"in_data_type": dtype.tflite, "out_data_type": 0}),
        "y = ADD(x, f)",
        outputs="y d",
    )


@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
@pytest.mark.parametrize("backend", ["none", "opencl"])
def test_densify_as_litert(
    backend: str, dtype: DType, require_backend: Callable[[str], object]
) -> None:
    content = model_densify(dtype)
    x = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(np.float32)
    found = []
    delegates = []
    if backend != "none":
        require_backend(backend)
        delegates = [tflgpu.GpuDelegate(backend=backend)]
    ours = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
    for interpreter in (ours, litert.Interpreter(model_content=content)):
        allocate_and_run(interpreter, {2: x})
        found.append([interpreter.get_tensor(i) for i in (3, 1)])
    ours.close()
    for delegate in delegates:
        delegate.close()
    assert np.count_nonzero(found[1][1]) == 7
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# LSH_PROJECTION's hash, of items of every length for which it does something else, against
# LiteRT.


#: Of items; four bytes more are hashed.
WIDTHS = (1, 3, 4, 5, 11, 12, 13, 27, 28, 29, 45, 60, 61, 64, 123, 124, 125, 126, 188, 189, 260)


@pytest.mark.parametrize("width", WIDTHS)
def test_bits_as_litert(width: int) -> None:
    rng = np.random.default_rng(width)
    arrays = [
        rng.standard_normal((5, 8)).astype(np.float32),
        rng.integers(0, 256, (6, width)).astype(np.uint8),
        rng.standard_normal(6).astype(np.float32),
    ]
    tensors = [
        TensorSpec(f"i{i}", a.shape, DType.from_numpy(a.dtype)) for i, a in enumerate(arrays)
    ]
    tensors.append(TensorSpec("y", (40,), DType.I32))
    op = OperatorSpec("LSH_PROJECTION", {"type": 2}, [0, 1, 2], [3])
    theirs = litert.Interpreter(model_content=write_model(ModelSpec(tensors, [op], [0, 1, 2], [3])))
    allocate_and_run(theirs, arrays)
    definition = builtin_ops()["LSH_PROJECTION"]
    attributes = definition.parse(Fields("LSH_PROJECTION", {"type": 2}))
    (ours,) = definition.reference(attributes, arrays)
    assert 0 < int(ours.sum()) < 40
    np.testing.assert_array_equal(ours, theirs.get_tensor(3))


# PAD, PADV2 and MIRROR_PAD take paddings of the types that TFLite takes, and no others.


PADDINGS = np.array([[1, 2], [2, 1]])
TYPES = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.F32)
#: That of the padded tensor, whose zero point is what PAD fills with.
SCALED = Quantization((0.5,), (7,))
#: That of the paddings, which means nothing: they would be others by it.
MEANINGLESS = Quantization((0.25,), (-1,))


def model_padding(
    op: str, paddings: DType, data: DType = DType.F32, *, scaled_paddings: bool = False
) -> bytes:
    """A 5 x 4 tensor with a border; a quantized one where it is of 8 or 16 bits."""
    quant = SCALED if data in (DType.I8, DType.U8) else None
    if data is DType.I16:
        quant = Quantization((0.5,), (0,))
    tensors = [
        TensorSpec("x", (5, 4), data, None, quant),
        TensorSpec(
            "paddings", (2, 2), paddings, PADDINGS.astype(paddings.numpy),
            MEANINGLESS if scaled_paddings else None,
        ),
    ]  # fmt: skip
    if op == "PADV2":
        tensors.append(TensorSpec("value", (), data, np.array(3, data.numpy), quant))
    reads = range(len(tensors))
    tensors.append(TensorSpec("y", (8, 7), data, None, quant))
    fields = {"mode": 0} if op == "MIRROR_PAD" else {}
    operators = [OperatorSpec(op, fields, reads, [len(reads)], version=2)]
    return write_model(ModelSpec(tensors, operators, [0], [len(reads)]))


def run(interpreter: Any) -> Array:
    """On different numbers in every place."""
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    set_and_run(interpreter, {given["index"]: np.arange(20).reshape(5, 4).astype(given["dtype"])})
    return interpreter.get_tensor(made["index"])


def by_litert(content: bytes) -> Array | None:
    """TFLite's answer; None where it refuses."""
    try:
        return run(litert.Interpreter(model_content=content))
    except (RuntimeError, ValueError):
        return None


@pytest.mark.parametrize("backend", [None, "cpu_ref"])
@pytest.mark.parametrize("paddings", TYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("op", ["PAD", "PADV2", "MIRROR_PAD"])
def test_as_tflite(op: str, paddings: DType, backend: str | None) -> None:
    content = model_padding(op, paddings)
    wanted = by_litert(content)
    delegates = [] if backend is None else [tflgpu.GpuDelegate(backend=backend)]
    if wanted is None:
        with pytest.raises(tflgpu.errors.ModelError, match=r"paddings .* are \w+; they may be"):
            run(tflgpu.Interpreter(model_content=content, experimental_delegates=delegates))
        return
    with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as ours:
        np.testing.assert_array_equal(run(ours), wanted)
        if backend is not None:
            assert ours.report.fully_delegated
    for delegate in delegates:
        delegate.close()


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("data", [DType.I8, DType.U8, DType.I16], ids=lambda d: str(d.value))
@pytest.mark.parametrize("paddings", [DType.I8, DType.I16], ids=lambda d: str(d.value))
@pytest.mark.parametrize("op", ["PAD", "PADV2"])
def test_of_quantized_tensors(op: str, paddings: DType, data: DType, scaled: bool) -> None:
    """The float view makes real numbers of 8- and 16-bit tensors, but not of paddings."""
    content = model_padding(op, paddings, data, scaled_paddings=scaled)
    wanted = by_litert(content)
    assert wanted is not None
    with tflgpu.Interpreter(model_content=content) as ours:
        np.testing.assert_array_equal(run(ours), wanted)


# EMBEDDING_LOOKUP_SPARSE and HASHTABLE_LOOKUP, beyond their samples: what only a run tells.


def _i32(*data: Any) -> Array:
    return np.array(data, np.int32)


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def _sparse(count: int, rank: int, kind: int) -> bytes:
    """All operands but the table are inputs."""
    shapes = [(count,), (count, rank), (rank,), (count,)]
    types = [DType.I32, DType.I32, DType.I32, DType.F32]
    tensors = [
        TensorSpec(f"i{i}", s, t) for i, (s, t) in enumerate(zip(shapes, types, strict=True))
    ]
    tensors += [TensorSpec("table", TABLE.shape, DType.F32, TABLE), TensorSpec("y", (1, 3))]
    op = OperatorSpec("EMBEDDING_LOOKUP_SPARSE", {"combiner": kind}, range(5), (5,))
    return write_model(ModelSpec(tensors, [op], range(4), (5,)))


def _run(make: Any, content: bytes, feeds: list[Array]) -> Array:
    interpreter = make(model_content=content)
    allocate_and_run(interpreter, feeds)
    return interpreter.get_tensor(len(feeds) + 1)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_dense_shape_that_is_computed(kind: int) -> None:
    feeds = [
        _i32(1, 3, 0), _i32([0, 0], [2, 0], [2, 1]), _i32(4, 2), np.array([1, 2, 0.5], np.float32)
    ]  # fmt: skip
    content = _sparse(3, 2, kind)
    mine, wanted = (_run(i, content, feeds) for i in (Interpreter, litert.Interpreter))
    assert mine.shape == wanted.shape == (4, 3)
    np.testing.assert_allclose(mine, wanted, rtol=1e-6)


def test_no_lookups() -> None:
    feeds = [_i32(), _i32().reshape(0, 2), _i32(2, 5), np.empty(0, np.float32)]
    mine, wanted = (_run(i, _sparse(0, 2, 1), feeds) for i in (Interpreter, litert.Interpreter))
    assert mine.tolist() == wanted.tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [(4, 0, r"id 4 is outside \[0, 4\)"), (-1, 0, "id -1"), (0, 2, r"dense shape of \[2\]")],
)
def test_an_index_outside(ids: int, rows: int, message: str) -> None:
    feeds = [_i32(ids), _i32([rows, 0]), _i32(2, 2), np.ones(1, np.float32)]
    with pytest.raises(TflgpuError, match=message) as raised:
        _run(Interpreter, _sparse(1, 2, 0), feeds)
    assert "EMBEDDING_LOOKUP_SPARSE" in str(raised.value)
    assert isinstance(raised.value, (InputError, RuntimeError))


def test_keys_whose_difference_32_bits_do_not_hold() -> None:
    keys = _i32(-(2**31), 5, 2**31 - 1)
    asked = _i32(-(2**31), 2**31 - 1, 5, 0)
    content = small_model(
        {
            "q": tensor_of((4,), DType.I32),
            "k": tensor_of((3,), DType.I32, keys),
            "v": tensor_of((3,), DType.F32, np.array([1, 2, 3], np.float32)),
            "y": (4,),
            "hits": tensor_of((4,), DType.U8),
        },
        "y, hits = HASHTABLE_LOOKUP(q, k, v)",
    )
    found = []
    for make in (Interpreter, litert.Interpreter):
        interpreter = make(model_content=content)
        allocate_and_run(interpreter, {0: asked})
        found.append([interpreter.get_tensor(i).tolist() for i in (3, 4)])
    assert found[0] == found[1]
