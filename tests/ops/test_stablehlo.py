"""StableHLO's operators in files: those with subgraphs against LiteRT, and what only LiteRT's GPU
accelerator has against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ops.base import Fields, Operand
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec

from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def body(name: str, second: int = 1) -> SubgraphSpec:
    """A subgraph of two numbers: one operator, of the first and of number ``second``."""
    two = [TensorSpec(n, ()) for n in "ab"]
    if not name:
        return SubgraphSpec(two, [], [0, 1], [second])
    return SubgraphSpec(
        [*two, TensorSpec("c", ())], [OperatorSpec(name, {}, [0, second], [2])], [0, 1], [2]
    )


def scatter(computation: SubgraphSpec) -> bytes:
    """Three rows of updates in a matrix, of which two fall on one row and one reaches beyond it."""
    fields = {
        "update_window_dims": (1,), "inserted_window_dims": (0,), "index_vector_dim": 1,
        "scatter_dims_to_operand_dims": (0,), "update_computation_subgraph_index": 1,
    }  # fmt: skip
    return small_model(
        {
            "x": (5, 3),
            "at": tensor_of((4, 1), DType.I32, [[3], [1], [3], [7]]),
            "updates": (4, 3),
            "y": (5, 3),
        },
        ("y = STABLEHLO_SCATTER(x, at, updates)", fields),
        subgraphs=[computation],
    )


def windows(computation: SubgraphSpec) -> bytes:
    """Windows of 2 x 3 in steps of two rows."""
    fields = {
        "window_dimensions": (2, 3), "window_strides": (2, 1), "base_dilations": (1, 1),
        "window_dilations": (1, 1), "padding": (0, 0, 0, 1), "body_subgraph_index": 1,
    }  # fmt: skip
    return small_model(
        {"x": (5, 7), "start": tensor_of((), data=0.5), "y": (2, 6)},
        ("y = STABLEHLO_REDUCE_WINDOW(x, start)", fields),
        subgraphs=[computation],
    )


def run(interpreter: object, seed: int = 0) -> Array:
    interpreter.allocate_tensors()
    rng = np.random.default_rng(seed)
    for detail in interpreter.get_input_details():
        drawn = rng.uniform(-2, 2, detail["shape"]).astype(np.float32)
        interpreter.set_tensor(detail["index"], drawn)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


MODELS = {
    **{f"scatter {n or 'update'}": scatter(body(n))
       for n in ("", "STABLEHLO_ADD", "STABLEHLO_MAXIMUM")},
    **{f"windows {n}": windows(body(n)) for n in ("STABLEHLO_ADD", "MUL", "MINIMUM")},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cpu", ["litert", "reference", "device"])
def test_a_file_gives_what_litert_gives(name: str, cpu: str) -> None:
    content = MODELS[name]
    wanted = run(litert.Interpreter(model_content=content))
    options = {"cpu_backend": "litert" if cpu == "litert" else "cpu_ref"}
    delegates = []
    if cpu == "device":
        delegates = [tflgpu.GpuDelegate(backend="cpu_ref", device=1)]
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=delegates, **options
    ) as interpreter:
        got = run(interpreter)
        if cpu == "device":
            assert not interpreter.report.refusals
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "computation", [body("", second=0), body("STABLEHLO_ADD", second=0), body("DIV")]
)
def test_a_subgraph_that_is_no_merging_is_refused(computation: SubgraphSpec) -> None:
    interpreter = tflgpu.Interpreter(
        model_content=scatter(computation), experimental_delegates=[], cpu_backend="cpu_ref"
    )
    with interpreter, pytest.raises(tflgpu.UnsupportedError, match="its subgraph is not one of"):
        interpreter.allocate_tensors()


def compute(name: str, *arrays: Array, **fields: object) -> Array:
    op = builtin_ops()[name]
    attributes = op.parse(Fields(name, fields))
    operands = [Operand(Spec(a.shape, DType.from_numpy(a.dtype))) for a in arrays]
    (spec,) = op.infer(attributes, operands)
    (found,) = op.reference(attributes, arrays)
    assert found.shape == spec.shape
    return found


def test_what_only_the_gpu_accelerator_has() -> None:
    f32, i32 = np.float32, np.int32
    limits = np.array(-1, f32), np.array(2, f32)
    x = np.array([-3, 0.5, 7], f32)
    assert compute("STABLEHLO_CLAMP", limits[0], x, limits[1]).tolist() == [-1, 0.5, 2]
    assert compute("STABLEHLO_CLAMP", limits[1], x, limits[0]).tolist() == [-1, -1, -1]
    a, b = np.array([7, -7, 7, -7], i32), np.array([3, 3, -3, -3], i32)
    assert compute("STABLEHLO_REMAINDER", a, b).tolist() == [1, -1, 1, -1]
    rest = compute("STABLEHLO_REMAINDER", np.array([5.5, -5.5], f32), np.array([2, 2], f32))
    assert rest.tolist() == [1.5, -1.5]
    np.testing.assert_allclose(
        compute("STABLEHLO_CBRT", np.array([27, -8, 0], f32)), [3, -2, 0], rtol=1e-6
    )
    wide = compute(
        "STABLEHLO_BROADCAST_IN_DIM", np.array([[1], [2]], f32),
        broadcast_dimensions=(2, 0), output_shapes=((1, 3, 2),),
    )  # fmt: skip
    assert wide.tolist() == [[[1, 2], [1, 2], [1, 2]]]


@pytest.mark.parametrize(("count", "left"), [(31, -(2**31)), (32, 0), (-1, 0)])
def test_bits_that_are_shifted_out_are_gone(count: int, left: int) -> None:
    one = np.array([1], np.int32)
    assert compute("STABLEHLO_SHIFT_LEFT", one, one * count).tolist() == [left]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("STABLEHLO_REDUCE_WINDOW", {"window_dimensions": (2**28,), "base_dilations": (2**30,)},
         "too large with all that is put around"),
        ("STABLEHLO_REDUCE_WINDOW", {"window_dimensions": (2,), "padding": (2**40, -(2**40))},
         "too large with all that is put around"),
        ("STABLEHLO_REDUCE_WINDOW", {"window_dimensions": (2**21,), "padding": (2**21, 0)},
         "windows of 2,097,152 elements each"),
        ("STABLEHLO_PAD", {"edge_padding_low": (0,), "edge_padding_high": (-(2**40),),
                           "interior_padding": (2**40,)}, "too large before what is cut off"),
    ],
)  # fmt: skip
def test_what_would_take_hours_or_terabytes_is_refused(
    name: str, fields: dict[str, object], message: str
) -> None:
    """A few bytes of options ask for it, and a file of constants would when it is read."""
    with pytest.raises(tflgpu.UnsupportedError, match=message):
        compute(name, np.zeros(2, np.float32), np.float32(0), computation="ADD", **fields)


def test_steps_beyond_32_bits_run_on_the_cpu() -> None:
    """There is one window, so that none of them is made."""
    content = small_model(
        {"x": (2, 1), "start": tensor_of((), data=0.5), "y": (1, 1)},
        (
            "y = STABLEHLO_REDUCE_WINDOW(x, start)",
            {
                "window_dimensions": (2, 1),
                "window_strides": (2**40, 2**40),
                "base_dilations": (1, 1),
                "window_dilations": (1, 2**40),
                "padding": (0, 0, 0, 0),
                "body_subgraph_index": 1,
            },
        ),
        subgraphs=[body("STABLEHLO_ADD")],
    )
    wanted = run(litert.Interpreter(model_content=content))
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[delegate], cpu_backend="cpu_ref"
    ) as interpreter:
        got = run(interpreter)
        (refusal,) = interpreter.report.refusals
    assert "32 bits" in refusal.reason
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
