"""What the newest versions of old ops add: 16-bit floats, and whole numbers of 16 bits. (Quantized
tensors: see tests/quantized.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, first_results, side_by_side
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
