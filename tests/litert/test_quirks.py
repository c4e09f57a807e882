"""What LiteRT gets wrong stays away from it, and whoever calls gets the right numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_litert import quirks, recording

from tests.litert.litert_models import between, litert, numbers, one, run
from tests.small_models import small_model, tensor_of

TANH, RELU = 4, 1


def depthwise(activation: int = 0) -> bytes:
    tensors = [
        TensorSpec("x", (1, 4, 5, 3)),
        TensorSpec("w", (1, 2, 2, 3), data=numbers((1, 2, 2, 3), 1)),
        TensorSpec("y", (1, 3, 4, 3)),
    ]
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1, "depth_multiplier": 1,
              "fused_activation_function": activation}  # fmt: skip
    return one("DEPTHWISE_CONV_2D", fields, tensors, [0])


def reference(model: bytes, x: Any) -> Any:
    return run(model, [x], cpu_backend="cpu_ref")[0][0]


def test_a_depthwise_convolution_without_a_bias() -> None:
    """LiteRT crashes on it as the file has it; with a bias of zeros it does not."""
    x = numbers((1, 4, 5, 3), 2)
    (found,), report = run(depthwise(), [x])
    np.testing.assert_allclose(found, reference(depthwise(), x), rtol=1e-5, atol=1e-6)
    assert [bool(r.runs_on) for r in report.refusals] == [True]


def test_a_filter_of_2_bits() -> None:
    """LiteRT reads bytes, of which there are a quarter; a filter of ones gives sums of pixels."""
    ones = np.ones((3, 1, 1, 8), np.int8)
    tensors = [
        TensorSpec("x", (1, 4, 5, 8)),
        TensorSpec("w", ones.shape, DType.I2, ones, Quantization((0.5, 1.0, 2.0), (0,) * 3)),
        TensorSpec("b", (3,), data=np.zeros(3, np.float32)),
        TensorSpec("y", (1, 4, 5, 3)),
    ]
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1}
    x = numbers((1, 4, 5, 8), 2)
    (found,), report = run(one("CONV_2D", fields, tensors, [0]), [x])
    # Each of eight numbers is half a step of 255 away, or less, and counts twice at most.
    most = 8 * (max(x.max(), 0) - min(x.min(), 0)) / 255
    np.testing.assert_allclose(found, x.sum(-1, keepdims=True) * [0.5, 1, 2], rtol=0, atol=most)
    assert [bool(r.runs_on) for r in report.refusals] == [True]


@pytest.mark.parametrize("kind", [DType.I8, DType.I16])
def test_a_matrix_with_a_scale_for_each_column(kind: DType) -> None:
    tensors = [
        TensorSpec("x", (1, 2, 2), kind, quantization=Quantization((1.0,), (0,))),
        TensorSpec("w", (1, 2, 2), DType.I8, np.array([[[1, 2], [3, 4]]], np.int8),
                   Quantization((1.0, 2.0), (0, 0), 2)),
        TensorSpec("y", (1, 2, 2), kind, quantization=Quantization((1.0,), (0,))),
    ]  # fmt: skip
    x = np.array([[[1, 2], [-3, 4]]], kind.numpy)
    (found,), report = run(one("BATCH_MATMUL", {}, tensors, [0]), [x])
    np.testing.assert_array_equal(found, [[[7, 20], [9, 20]]])
    assert [bool(r.runs_on) for r in report.refusals] == [True]


def test_an_activation_that_is_no_clamp() -> None:
    """LiteRT leaves it out, and so do the references."""
    x = numbers((1, 4, 5, 3), 2)
    (found,), report = run(depthwise(TANH), [x])
    np.testing.assert_array_equal(reference(depthwise(TANH), x), reference(depthwise(), x))
    np.testing.assert_allclose(found, reference(depthwise(), x), rtol=1e-5, atol=1e-6)
    assert [bool(r.runs_on) for r in report.refusals] == [True]


def test_the_activation_of_a_concatenation() -> None:
    fields = {"axis": 2, "fused_activation_function": RELU}
    given = [TensorSpec("c", (2, 3, 1), data=np.full((2, 3, 1), -1, np.float32))]
    model = between("CONCATENATION", fields, given=given, made=TensorSpec("made", (2, 3, 6)))
    x = numbers((2, 3, 5))
    assert litert(model, [x])[0].max() == 1  # minus what RELU has to take away
    (found,), report = run(model, [x])
    assert found.max() == 0
    assert [bool(r.runs_on) for r in report.refusals] == [True, False, True]


@pytest.mark.parametrize("seen", [True, False])
def test_positions_of_maxima(seen: bool) -> None:
    """Whoever sees them gets those of MediaPipe's files; where nobody does LiteRT may count as it
    likes."""
    from tflgpu.ops.registry import builtin_ops

    pool = builtin_ops()["MaxPoolingWithArgmax2D"].samples()[0]
    unpool = builtin_ops()["MaxUnpooling2D"].samples()[0]
    shape, options = pool.args[0].shape, pool.custom_options
    half = (shape[0], shape[1] // 2, shape[2] // 2, shape[3])
    tensors = [
        TensorSpec("x", shape), TensorSpec("most", half), TensorSpec("at", half),
        TensorSpec("y", shape),
    ]  # fmt: skip
    operators = [
        OperatorSpec("MaxPoolingWithArgmax2D", {}, [0], [1, 2], custom_options=options),
        OperatorSpec("MaxUnpooling2D", {}, [1, 2], [3], custom_options=unpool.custom_options),
    ]
    model = write_model(ModelSpec(tensors, operators, [0], [3, 2] if seen else [3]))
    x = numbers(shape, 3)
    outputs, report = run(model, [x])
    expected, _ = run(model, [x], cpu_backend="cpu_ref")
    for found, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert {bool(r.runs_on) for r in report.refusals} == {not seen}


def test_what_a_file_stores_in_steps_is_rounded_by_litert(delegate: tflgpu.GpuDelegate) -> None:
    """Beside a device an 8-bit operator is computed on real numbers and rounded; where LiteRT runs
    it that is QUANTIZE and DEQUANTIZE. What becomes an op of ours, as an 8-bit ADD, the references
    run."""
    a, b = Quantization((0.0625,), (0,)), Quantization((0.25,), (-3,))
    model = small_model(
        {
            "x": tensor_of((1, 3, 7), DType.I8, None, a),
            "m": tensor_of((1, 3, 7), DType.I8, None, b),
            "y": tensor_of((1, 3, 7), DType.I8, None, b),
            "c": tensor_of((7,), DType.I8, np.arange(-3, 4, dtype=np.int8), b),
        },
        "m = ADD(x, c)",
        ("y = RELU(m)", {}, {"version": 2}),
    )
    x = np.random.default_rng(0).integers(-128, 128, (1, 3, 7)).astype(np.int8)
    options = {"quantized_models_allowed": False, "backend": delegate.device.info.backend,
               "device": delegate.device.info.index}  # fmt: skip
    with tflgpu.GpuDelegate(**options) as other:
        (found,), report = run(model, [x], other)
    assert not report.delegated_nodes
    assert {r.op: bool(r.runs_on) for r in report.refusals} == {"ADD": False, "RELU": True}
    (alone,), _ = run(model, [x])
    np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 3e38])
def test_a_scale_that_f32_cannot_count_with(scale: float) -> None:
    """It would end the process in a check of LiteRT's."""
    quant = Quantization((scale,), (0,))
    tensors = [TensorSpec(n, (4,), DType.I8, None, quant) for n in "xy"]
    with pytest.raises(UnsupportedError, match="f32 cannot count with the scale of x"):
        run(one("ADD", {}, tensors, [0], operands=[0, 0]), [np.zeros(4, np.int8)])


@pytest.mark.parametrize(
    ("op", "kind", "scale"),
    [
        ("ADD", DType.I8, 2.0**-19),
        ("ADD", DType.I16, 2.0**-14),
        ("SQUARED_DIFFERENCE", DType.I8, 2.0**-12),
    ],
)
def test_a_result_of_far_finer_steps_than_its_operands(op: str, kind: DType, scale: float) -> None:
    """As calibration gives `x - x` squared. LiteRT ends the process, but not at twice the step."""
    for finer in (scale, 2 * scale):
        tensors = [
            TensorSpec(name, (4,), kind, quantization=Quantization((step,), (0,)))
            for name, step in (("a", 1.0), ("b", 0.375), ("y", finer))
        ]
        content = one(op, {}, tensors, [0, 1])
        given = [np.array(x, kind.numpy) for x in ([0, 3, -2, 50], [0, 8, -8, 16])]
        (found,), _ = run(content, given)
        sums = given[0] + 0.375 * given[1]
        real = sums if op == "ADD" else (given[0] - 0.375 * given[1]) ** 2
        limits = np.iinfo(kind.numpy)
        np.testing.assert_array_equal(found, np.clip(real / finer, limits.min, limits.max))


def test_a_radius_beyond_all_channels() -> None:
    fields = {"radius": 2**31 - 1, "bias": 1.0, "alpha": 1.0, "beta": 0.5}
    tensors = [TensorSpec(n, (1, 1, 1, 5)) for n in "xy"]
    model = one("LOCAL_RESPONSE_NORMALIZATION", fields, tensors, [0])
    x = numbers((1, 1, 1, 5))
    (found,), report = run(model, [x])
    np.testing.assert_allclose(found, x / np.sqrt(1 + np.square(x).sum()), rtol=1e-6)
    assert [r.runs_on for r in report.refusals] == [""]


def test_the_smallest_number_over_minus_one() -> None:
    """The processor refuses to divide so, and LiteRT 2.3's process ends."""
    tensors = [TensorSpec(n, (3,), DType.I32) for n in "aby"]
    x, y = np.int32([-(2**31), 7, -7]), np.int32([-1, -1, 4])
    (found,), report = run(one("FLOOR_MOD", {}, tensors, [0, 1]), [x, y])
    assert found.tolist() == [0, 0, 1]
    assert [r.runs_on for r in report.refusals] == [""]


def test_shapes_that_do_not_broadcast() -> None:
    """LiteRT 2.3 aborts where BROADCAST_ARGS finds that at run time."""
    tensors = [
        TensorSpec("a", (2,), DType.I32), TensorSpec("b", (3,), DType.I32),
        TensorSpec("y", (3,), DType.I32),
    ]  # fmt: skip
    model = one("BROADCAST_ARGS", {}, tensors, [0, 1])
    (found,), report = run(model, [np.int32([3, 1]), np.int32([2, 1, 4])])
    assert found.tolist() == [2, 3, 4]
    assert [r.runs_on for r in report.refusals] == [""]
    with pytest.raises(TflgpuError, match=r"shapes \[3, 2\] and \[2, 1, 4\] do not broadcast"):
        run(model, [np.int32([3, 2]), np.int32([2, 1, 4])])


def test_variables_that_an_operator_does_not_keep_stay_refused() -> None:
    """What may be a state is known of the operators that are defined, and LiteRT is not asked."""
    tensors = [
        TensorSpec("x", (3,)),
        TensorSpec("v", (3,), is_variable=True),
        TensorSpec("y", (3,)),
    ]
    with pytest.raises(UnsupportedError, match="is a variable"):
        run(one("ADD", {}, tensors, [0]), [numbers((3,))])


def test_names_of_any_length_make_short_errors() -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(between("Z" * 3000), [numbers((2, 3, 5))])
    assert len(str(raised.value)) < 700


def test_places_of_sparse_to_dense_that_come_at_run_time() -> None:
    """LiteRT looks at none of them before it writes there."""
    tensors = [
        TensorSpec("i", (2,), DType.I32), TensorSpec("n", (1,), DType.I32, np.array([5], np.int32)),
        TensorSpec("v", (2,), data=numbers((2,), 1)), TensorSpec("d", (), data=np.float32(0.5)),
        TensorSpec("y", (5,)),
    ]  # fmt: skip
    model = one("SPARSE_TO_DENSE", {}, tensors, [0])
    (found,), report = run(model, [np.array([3, 1], np.int32)])
    np.testing.assert_array_equal(found, litert(model, [np.array([3, 1], np.int32)])[0])
    assert [r.runs_on for r in report.refusals] == [""]
    with pytest.raises(TflgpuError, match=r"index 1000000 is outside \[0, 5\)"):
        run(model, [np.array([3, 1_000_000], np.int32)])


@pytest.mark.parametrize(
    ("op", "kind"), [("ADD", DType.I8), ("SUB", DType.I16), ("LESS", DType.U8)]
)
def test_stored_numbers_without_a_scale(op: str, kind: DType) -> None:
    """LiteRT's kernels end the process; here it is an error that names the operator."""
    made = DType.BOOL if op == "LESS" else kind
    tensors = [
        TensorSpec("a", (3,), kind),
        TensorSpec("b", (3,), kind),
        TensorSpec("y", (3,), made),
    ]
    x = np.array([1, 2, 3], kind.numpy)
    with pytest.raises(TflgpuError, match=op):
        run(one(op, {}, tensors, [0, 1], version=2), [x, x])


def test_a_bias_that_is_shorter_than_litert_takes_it_for() -> None:
    """It reads the bytes behind it, unless an option says that there are 32 bits."""
    quant = Quantization((1e-3,), (0,))
    weights = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    bias = np.array([500, -500, 0], np.int32)
    tensors = [
        TensorSpec("x", (2, 4), DType.I16, None, quant),
        TensorSpec("w", (3, 4), DType.I8, weights, quant),
        TensorSpec("b", (3,), DType.I32, bias, Quantization((1e-6,), (0,))),
        TensorSpec("y", (2, 3), DType.I16, None, Quantization((1e-5,), (0,))),
    ]
    x = np.arange(-4000, 4000, 1000, dtype=np.int16).reshape(2, 4)
    told, untold = (
        one("FULLY_CONNECTED", {"quantized_bias_type": kind}, tensors, [0], operands=[0, 1, 2],
            version=13)
        for kind in (2, 0)
    )  # fmt: skip
    wanted = litert(told, [x])[0]
    assert len(np.unique(wanted)) == 6
    for model in (told, untold):
        (found,), _ = run(model, [x])
        np.testing.assert_array_equal(found, wanted)


def test_a_depthwise_filter_of_8_bits_with_one_scale() -> None:
    """LiteRT reads a scale for each channel, of which there is one."""
    weights = np.arange(-6, 6, dtype=np.int8).reshape(1, 2, 2, 3)
    tensors = [
        TensorSpec("x", (1, 4, 5, 3)),
        TensorSpec("w", (1, 2, 2, 3), DType.I8, weights, Quantization((0.01,), (0,))),
        TensorSpec("b", (3,), data=numbers((3,), 1)),
        TensorSpec("y", (1, 3, 4, 3)),
    ]
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1, "depth_multiplier": 1}
    model = one("DEPTHWISE_CONV_2D", fields, tensors, [0], operands=[0, 1, 2], version=6)
    x = numbers((1, 4, 5, 3), 2)
    (found,), _ = run(model, [x])
    np.testing.assert_allclose(found, reference(model, x), rtol=0, atol=1e-6)
    assert 0.1 < np.abs(found).max() < 10


@pytest.mark.parametrize("op", ["RELU", "MEAN", "EXP"])
def test_numbers_of_8_bits_without_a_scale(op: str) -> None:
    """LiteRT makes one number of whatever comes: it divides by a scale of 0. Nobody computes it."""
    tensors = [TensorSpec("x", (2, 3), DType.I8), TensorSpec("y", (2, 3), DType.I8)]
    if op == "MEAN":
        axis = TensorSpec("axis", (1,), DType.I32, np.array([1], np.int32))
        tensors[1:] = [axis, TensorSpec("y", (2,), DType.I8)]
    model = one(op, {}, tensors, range(1), version=2)
    x = np.array([[1, 2, 3], [4, 50, 6]], np.int8)
    assert len(np.unique(litert(model, [x])[0])) == 1
    with pytest.raises(UnsupportedError, match=f"{op} of int8 needs the tensors' scales"):
        run(model, [x])


@pytest.mark.parametrize("kind", [DType.F64, DType.U16, DType.BOOL])
def test_diagonals_of_types_that_litert_moves_as_floats(kind: DType) -> None:
    zeros = np.zeros((5, 5), kind.numpy)
    tensors = [TensorSpec("zeros", (5, 5), kind, zeros), TensorSpec("x", (5,), kind),
               TensorSpec("y", (5, 5), kind)]  # fmt: skip
    model = one("MATRIX_SET_DIAG", {}, tensors, [1])
    x = np.array([1, 0, 1, 1, 1], kind.numpy)
    (found,), report = run(model, [x])
    np.testing.assert_array_equal(found, np.diag(x))
    assert [r.runs_on for r in report.refusals] == [""]


def test_a_permutation_that_is_not_of_32_bits() -> None:
    perm = np.array([0, 2, 1], np.int64)
    tensors = [TensorSpec("x", (2, 3, 4)), TensorSpec("perm", (3,), DType.I64, perm),
               TensorSpec("y", (2, 4, 3))]  # fmt: skip
    model = one("TRANSPOSE", {}, tensors, [0])
    x = numbers((2, 3, 4))
    read = litert(model, [x], "BUILTIN_WITHOUT_DEFAULT_DELEGATES")[0]
    assert read.shape == (2, 2, 4)  # 0, 0 and 2
    (found,), _ = run(model, [x])
    np.testing.assert_array_equal(found, x.transpose(perm))


def test_an_axis_of_16_bits() -> None:
    tensors = [TensorSpec("axis", (), DType.I16, np.array(-1, np.int16)), TensorSpec("x", (2, 4)),
               TensorSpec("y", (2, 4))]  # fmt: skip
    model = one("SPLIT", {"num_splits": 1}, tensors, [1])
    x = numbers((2, 4))
    with pytest.raises(RuntimeError):
        litert(model, [x])  # of 65535, or of whatever follows in the file
    (found,), report = run(model, [x])
    np.testing.assert_array_equal(found, x)
    assert [r.runs_on for r in report.refusals] == [""]


def test_a_reshape_to_a_scalar_is_not_apart() -> None:
    """No file can hold the shape of a scalar as a constant, and LiteRT reads it in the options."""
    model = small_model(
        {"x": (1, 1), "shape": np.zeros(0, np.int32), "one": (), "z": ()},
        "one = RESHAPE(x, shape)", "z = NEG(one)", inputs="x", outputs="z",
    )  # fmt: skip
    (found,), report = run(model, [np.full((1, 1), 3, np.float32)])
    assert (found.shape, float(found)) == ((), -3)
    assert [bool(r.runs_on) for r in report.refusals] == [True, True]


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pytest.mark.parametrize(
    ("shape", "into"), [((1, 2, 1, 3), (4, 2, 5, 3)), ((1,), (7,)), ((2, 1), (3, 2, 4))]
)
def test_broadcasting_by_blocks(
    dtype: DType, shape: tuple[int, ...], into: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteRT's BROADCAST_TO goes by elements; what it is given in its place copies the same."""
    written = list[str]()
    ours = quirks.as_written
    monkeypatch.setattr(recording, "as_written", lambda n: written.append(ours(n).op) or ours(n))
    model = small_model(
        {"x": tensor_of(shape, dtype), "shape": np.array(into, np.int32),
         "y": tensor_of(into, dtype)},
        ("y = BROADCAST_TO(x, shape)", {}, {"version": 2}), inputs="x", outputs="y",
    )  # fmt: skip
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype.numpy) - 2
    (found,), _ = run(model, [x])
    np.testing.assert_array_equal(found, np.broadcast_to(x, into))
    is_by_blocks = dtype is DType.F32 and len(shape) == len(into)
    assert written == ["TILE" if is_by_blocks else "BROADCAST_TO"]
