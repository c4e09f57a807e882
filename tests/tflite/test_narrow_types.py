"""Tensors of bf16 and of 4 bits that a model makes as it runs, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.constants import pack, packed_range, unpack
from tflgpu.tflite.model_file import Blockwise
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F32, I32, BF16, I4, U4, I8 = DType.F32, DType.I32, DType.BF16, DType.I4, DType.U4, DType.I8
WHERE = ("litert", "cpu_ref", "opencl")
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1e-20, -2.5]


def results(content: bytes, where: str, feeds: Sequence[Array]) -> list[Array]:
    """What LiteRT makes ("oracle"), or tflgpu on one of its backends."""

    def run(interpreter: object) -> list[Array]:
        allocate_and_run(interpreter, feeds)
        return outputs(interpreter)

    if where == "oracle":
        return run(litert.Interpreter(model_content=content))
    if where == "litert":
        with tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as interpreter:
            return run(interpreter)
    with (
        tflgpu.GpuDelegate(backend=where) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        return run(interpreter)


def cast(source: tuple[int, DType], target: tuple[int, DType]) -> OperatorSpec:
    fields = {"in_data_type": source[1].tflite, "out_data_type": target[1].tflite}
    return OperatorSpec("CAST", fields, [source[0]], [target[0]], version=7)


#: How many operands of bf16 an operator takes, and the constants behind them.
BRAIN_OPS = {
    "FLOOR": (1, ()), "ROUND": (1, ()), "NEG": (1, ()), "LOGISTIC": (1, ()), "TANH": (1, ()),
    "MAXIMUM": (2, ()), "MINIMUM": (2, ()), "ATAN2": (2, ()),
    "CONCATENATION": (2, ()), "TRANSPOSE": (1, ([1, 0],)), "PAD": (1, ([[0, 1], [2, 0]],)),
    "GATHER": (1, ([2, 0],)),
}  # fmt: skip


def brain_model() -> bytes:
    """Every operator of `BRAIN_OPS`, of one or two bf16 tensors [5, 23], cast to f32."""
    tensors = [
        TensorSpec(n, (5, 23), t) for n, t in zip("xyXY", (F32, F32, BF16, BF16), strict=True)
    ]
    operators, outputs = [cast((0, F32), (2, BF16)), cast((1, F32), (3, BF16))], []
    shapes = {"CONCATENATION": (10, 23), "TRANSPOSE": (23, 5), "PAD": (6, 25), "GATHER": (2, 23)}
    for name, (count, constants) in BRAIN_OPS.items():
        operands = [2, 3][:count]
        for constant in constants:
            data = np.array(constant, np.int32)
            tensors.append(TensorSpec(f"{name} says", data.shape, I32, data))
            operands.append(len(tensors) - 1)
        made, wide = len(tensors), len(tensors) + 1
        shape = shapes.get(name, (5, 23))
        tensors += [TensorSpec(name, shape, BF16), TensorSpec(f"{name} f32", shape)]
        version = builtin_ops()[name].file.max_version
        operators += [
            OperatorSpec(name, {}, operands, [made], version=version),
            cast((made, BF16), (wide, F32)),
        ]
        outputs.append(wide)
    return write_model(ModelSpec(tensors, operators, [0, 1], outputs))


@pytest.mark.parametrize("where", WHERE)
def test_bf16_inside_a_model(where: str) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.uniform(-9, 9, (5, 23)).astype(np.float32) for _ in range(2))
    y[0, 0] = x[0, 0]
    if where != "opencl":
        x.flat[: len(SPECIAL)] = SPECIAL
    content = brain_model()
    wanted = results(content, "oracle", [x, y])
    found = results(content, where, [x, y])
    assert len(wanted) == len(BRAIN_OPS)
    for name, a, b in zip(BRAIN_OPS, found, wanted, strict=True):
        approximate = name in ("LOGISTIC", "TANH", "ATAN2")
        if name in (
            "MAXIMUM",
            "MINIMUM",
        ):  # LiteRT's kernels for bf16 lose a NaN; those for f32 do not
            assert where == "opencl" or np.isnan(a[0, 0])
            a[0, 0] = b[0, 0]
        # bf16 has 8 bits: one step is at most 2^-7 of a number.
        np.testing.assert_allclose(a, b, rtol=2**-7 if approximate else 0, atol=0, err_msg=name)
        assert not np.any(np.where(np.isfinite(a), a, 0).view(np.uint32) & 0xFFFF), name


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [I4, U4])
def test_four_bits_are_stored_and_read(dtype: DType, where: str) -> None:
    quant = Quantization((0.5,), (0 if dtype is I4 else 3,))
    given = TensorSpec("x", (3, 7))
    tensors = [given, TensorSpec("c", (3, 7), dtype), TensorSpec("q", (3, 7), dtype, None, quant),
               TensorSpec("C", (3, 7)), TensorSpec("Q", (3, 7)),
               TensorSpec("perm", (2,), I32, np.array([1, 0], np.int32)),
               TensorSpec("t", (7, 3), dtype, None, quant)]  # fmt: skip
    operators = [
        cast((0, F32), (1, dtype)), OperatorSpec("QUANTIZE", {}, [0], [2], version=4),
        cast((1, dtype), (3, F32)), OperatorSpec("DEQUANTIZE", {}, [2], [4], version=6),
        OperatorSpec("TRANSPOSE", {}, [2, 5], [6], version=4),
    ]  # fmt: skip
    content = write_model(ModelSpec(tensors, operators, [0], [1, 2, 3, 4, 6]))
    x = np.random.default_rng(1).uniform(-12, 12, (3, 7)).astype(np.float32)
    x[0, :4] = [300, -300, 1e9, 0.5]
    wanted = results(content, "oracle", [x])
    found = results(content, where, [x])
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [I4, U4])
def test_four_bits_that_come_in(dtype: DType, where: str) -> None:
    tensors = [
        TensorSpec("x", (3, 5), dtype),
        TensorSpec("w", (3,), I32, np.array([1, 5, 3], np.int32)),
        TensorSpec("y", (1, 5, 3), dtype),
        TensorSpec("z", (3, 5)),
    ]
    operators = [OperatorSpec("RESHAPE", {}, [0, 1], [2]), cast((0, dtype), (3, F32))]
    content = write_model(ModelSpec(tensors, operators, [0], [2, 3]))
    low, high = packed_range(dtype)
    x = np.arange(low, high).astype(dtype.unpacked.numpy).reshape(3, 5)
    wanted = results(content, "oracle", [x])
    for a, b in zip(results(content, where, [x]), wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    x[1, 2] = high + 1
    for each in ("oracle", where):
        with pytest.raises(ValueError, match=f"{low} (and|to) {high}"):
            results(content, each, [x])


@pytest.mark.parametrize(
    ("op", "types", "said"),
    [
        ("ABS", (I8, I4), "has no result of i4"),
        ("BITCAST", (I32, BF16), "reads the bits"),
        ("BITCAST", (I4, I8), "reads the bits"),
    ],
)
def test_what_cannot_be_held_is_refused(op: str, types: tuple[DType, DType], said: str) -> None:
    tensors = [TensorSpec("x", (4, 2), types[0]), TensorSpec("y", (4, 2), types[1])]
    if types[1] is BF16:
        tensors += [TensorSpec("z", (4, 2))]
    more = [cast((1, BF16), (2, F32))] if types[1] is BF16 else []
    content = write_model(
        ModelSpec(tensors, [OperatorSpec(op, {}, [0], [1]), *more], [0], [len(tensors) - 1])
    )
    x = np.zeros((4, 2), types[0].unpacked.numpy)
    for where in ("litert", "cpu_ref"):
        with pytest.raises(tflgpu.UnsupportedError, match=said):
            results(content, where, [x])


# Weights of 2, 4 and 16 bits, by channel and by block, against the real numbers that they stand
# for and against LiteRT, which multiplies them by activations of 8 bits.


I2, WEIGHTS_I4, WEIGHTS_U4, WEIGHTS_BF16 = DType.I2, DType.I4, DType.U4, DType.BF16
RNG = np.random.default_rng(5)


def stored(dtype: DType, shape: tuple[int, ...]) -> Array:
    low, high = packed_range(dtype)
    return RNG.integers(low, high + 1, shape).astype(dtype.unpacked.numpy)


def product(weights: TensorSpec, *more: TensorSpec, version: int = 7) -> bytes:
    """x [3, 32] times weights [5, 32]."""
    tensors = [TensorSpec("x", (3, 32)), weights, TensorSpec("y", (3, 5)), *more]
    operator = OperatorSpec("FULLY_CONNECTED", {}, [0, 1], [2], version=version)
    return write_model(ModelSpec(tensors, [operator], [0], [2]))


def by_channel(dtype: DType) -> tuple[bytes, Array]:
    w, scale = stored(dtype, (5, 32)), RNG.uniform(0.1, 0.2, 5).astype(np.float32)
    quant = Quantization(tuple(scale.tolist()), (0,) * 5, 0)
    version = 14 if dtype is I2 else 7
    return product(TensorSpec("w", (5, 32), dtype, w, quant), version=version), w * scale[:, None]


def by_block(dtype: DType, points: bool = False) -> tuple[bytes, Array]:
    w = stored(dtype, (5, 32))
    scale = RNG.uniform(0.1, 0.2, (5, 2)).astype(np.float16)
    zero = RNG.integers(-2, 2, (5, 2)).astype(np.int8)
    weights = TensorSpec("w", (5, 32), dtype, w, blockwise=Blockwise(3, 4 if points else -1, 16))
    scales = TensorSpec("scales", (5, 2), DType.F16, scale)
    content = product(weights, scales, TensorSpec("zero", (5, 2), DType.I8, zero))
    spread = [np.repeat(a.astype(np.float32), 16, 1) for a in (scale, zero)]
    return content, (w - spread[1] * points) * spread[0]


def run(interpreter: object, x: Array | None = None) -> Array:
    interpreter.allocate_tensors()
    if x is not None:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def run_here(content: bytes, where: str, x: Array | None = None) -> Array:
    delegates = [tflgpu.GpuDelegate(backend="cpu_ref", device=1)] if where == "device" else []
    side = "cpu_ref" if where == "device" else where
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=delegates, cpu_backend=side
    ) as interpreter:
        return run(interpreter, x)


PRODUCTS = {
    "i4": by_channel(WEIGHTS_I4), "i2": by_channel(I2), "i4 blocks": by_block(WEIGHTS_I4),
    "i4 blocks with zero points": by_block(WEIGHTS_I4, points=True), "i2 blocks": by_block(I2),
}  # fmt: skip
#: LiteRT 2.3 gives zeros for the first, and leaves the zero points of the second out.
WRONG_IN_LITERT = {"i2 blocks", "i4 blocks with zero points"}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_products_are_of_the_real_numbers(name: str, where: str) -> None:
    content, real = PRODUCTS[name]
    x = RNG.uniform(-1, 1, (3, 32)).astype(np.float32)
    found = run_here(content, where, x)
    # Kernels may make 8-bit numbers of the activations, as LiteRT's do: each is off by half a step
    # then, times its weight.
    step = np.abs(x).max(1) / 127
    rounds = name in ("i4", "i2", "i4 blocks")
    off = step[:, None] / 2 * np.abs(real).sum(1) if rounds else np.zeros((3, 5))
    assert (np.abs(found - x @ real.T) <= off + 1e-5 * (1 + np.abs(found))).all()
    if where == "cpu_ref" and name not in WRONG_IN_LITERT:
        wanted = run(litert.Interpreter(model_content=content), x)
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize(("depth", "block"), [(32, 16), (64, 32), (96, 32), (128, 64), (64, 64)])
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_rows_beside_blocks_are_rounded_as_litert_does(depth: int, block: int, where: str) -> None:
    """From blocks of 32 on XNNPACK takes them, with their scales in bf16."""
    rng = np.random.default_rng(depth + block)
    w = rng.integers(-8, 8, (8, depth)).astype(np.int8)
    scale = rng.uniform(0.1, 0.2, (8, depth // block)).astype(np.float16)
    content = small_model(
        {
            "x": (3, depth),
            "w": tensor_of((8, depth), WEIGHTS_I4, w, blockwise=Blockwise(3, -1, block)),
            "y": (3, 8), "s": scale,
        },
        ("y = FULLY_CONNECTED(x, w, -)", {}, {"version": 7}), inputs="x", outputs="y",
    )  # fmt: skip
    x = rng.uniform(-1, 1, (3, depth)).astype(np.float32)
    wanted = run(litert.Interpreter(model_content=content), x)
    np.testing.assert_allclose(run_here(content, where, x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [I2, WEIGHTS_I4])
@pytest.mark.parametrize("depth", [32, 18, 21])
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_rows_that_fill_no_whole_bytes(dtype: DType, depth: int, where: str) -> None:
    """LiteRT has two kernels for them, which round activations each in its own way, and others for
    bytes."""
    rng = np.random.default_rng(depth)
    low, high = packed_range(dtype)
    w = rng.integers(low, high + 1, (33, depth)).astype(np.int8)
    quant = Quantization(tuple(rng.uniform(0.1, 0.2, 33).tolist()), (0,) * 33, 0)
    content = small_model(
        {
            "x": (8, depth),
            "w": tensor_of(w.shape, dtype, w, quant),
            "b": tensor_of((33,), data=rng.normal(size=33).astype(np.float32)),
            "y": (8, 33),
        },
        ("y = FULLY_CONNECTED(x, w, b)", {}, {"version": 14}),
    )
    x = rng.normal(size=(8, depth)).astype(np.float32)
    wanted = run(litert.Interpreter(model_content=content), x)
    # Another rounding of one activation is off by a hundredth.
    np.testing.assert_allclose(run_here(content, where, x), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [I2, WEIGHTS_I4])
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_dequantize(dtype: DType, where: str) -> None:
    scales = (0.5, 0.25, 2.0)
    w = TensorSpec("w", (3, 7), dtype, stored(dtype, (3, 7)), Quantization(scales, (0, 0, 0), 0))
    operators = [OperatorSpec("DEQUANTIZE", {}, [0], [1], version=6),
                 OperatorSpec("ADD", {}, [1, 2], [3])]  # fmt: skip
    tensors = [w, *(TensorSpec(n, (3, 7)) for n in "axy")]
    content = write_model(ModelSpec(tensors, operators, [2], [3]))
    x = RNG.uniform(-1, 1, (3, 7)).astype(np.float32)
    wanted = run(litert.Interpreter(model_content=content), x)
    np.testing.assert_array_equal(run_here(content, where, x), wanted)


@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_constants_of_bf16(where: str) -> None:
    bits = RNG.uniform(-2, 2, (3, 7)).astype(np.float32).view(np.uint32) >> 16
    cast = {"in_data_type": WEIGHTS_BF16.tflite, "out_data_type": DType.F32.tflite}
    content = small_model(
        {
            "w": tensor_of((3, 7), WEIGHTS_BF16, bits.astype(np.uint16)),
            **dict.fromkeys("axy", (3, 7)),
        },
        ("a = CAST(w)", cast, {"version": 7}),
        "y = MUL(a, x)",
    )
    x = RNG.uniform(-1, 1, (3, 7)).astype(np.float32)
    wanted = run(litert.Interpreter(model_content=content), x)
    np.testing.assert_array_equal(run_here(content, where, x), wanted)


@pytest.mark.parametrize("dtype", [I2, WEIGHTS_I4, WEIGHTS_U4])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_packed_numbers_come_back(dtype: DType, count: int) -> None:
    values = np.resize(np.arange(*packed_range(dtype)), count).astype(dtype.unpacked.numpy)
    content = pack(values, dtype)
    assert len(content) == -(-count * dtype.packed // 8)
    np.testing.assert_array_equal(unpack(np.frombuffer(content, np.uint8), dtype, count), values)


def test_blocks_are_written_as_they_are_read() -> None:
    content, _ = PRODUCTS["i4 blocks with zero points"]
    (x, weights, *_) = read_model(write_model(spec_of(read_model(content)))).main.tensors
    assert weights.blockwise == Blockwise(3, 4, 16)
    assert x.blockwise is None


@pytest.mark.parametrize(
    ("blocks", "scales", "said"),
    [
        (Blockwise(3, -1, 12), np.ones((5, 2)), "blocks of 12 do not divide"),
        (Blockwise(3, -1, 16), np.ones((5, 4)), "are not a finite constant for each of"),
        (Blockwise(3, -1, 16), np.full((5, 2), np.nan), "are not a finite constant for each of"),
        (Blockwise(3, 0, 16), np.ones((5, 2)), "its zero points, tensor 0, are not a constant"),
    ],
)
def test_blocks_that_do_not_work_out_are_refused(
    blocks: Blockwise, scales: Array, said: str
) -> None:
    weights = TensorSpec("w", (5, 32), WEIGHTS_I4, stored(WEIGHTS_I4, (5, 32)), blockwise=blocks)
    content = product(weights, TensorSpec("s", scales.shape, DType.F32, scales.astype(np.float32)))
    with (
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
        ) as interpreter,
        pytest.raises(tflgpu.UnsupportedError, match=said),
    ):
        interpreter.allocate_tensors()
