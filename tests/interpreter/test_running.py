"""Running models: results as in LiteRT's interpreter, resizing, signatures, preserved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.interpreter import interpreter_models
from tests.interpreter import interpreter_models as models
from tests.running import allocate_and_run, allocated, set_and_run
from tests.small_models import small_model, small_spec, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter")

RNG = np.random.default_rng(20)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def pair(content: bytes, **options: Any) -> tuple[Interpreter, Any]:
    ours = Interpreter(model_content=content, **options)
    theirs = litert.Interpreter(model_content=content)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    return ours, theirs


def feed(interpreter: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    set_and_run(interpreter, inputs)
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def assert_runs_alike(ours: Any, theirs: Any, inputs: list[np.ndarray]) -> None:
    for a, b in zip(feed(ours, inputs), feed(theirs, inputs), strict=True):
        assert type(a) is type(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.fixture(params=[None, 0, 1], ids=["cpu", "references", "kernels"])
def options(request: pytest.FixtureRequest) -> Any:
    """Options of an interpreter without a delegate, and with one for each cpu_ref device."""
    if request.param is None:
        yield {}
        return
    with GpuDelegate(backend="cpu_ref", device=request.param, guard_bands=True) as delegate:
        yield {"experimental_delegates": [delegate]}


def test_stale_shapes_in_the_file_are_inferred_anew_as_litert_does(options: Any) -> None:
    # As a tool leaves them that gave the input another batch, and nothing else. Of two operators,
    # the second reads what the first makes; on a device the two may be one kernel.
    spec = small_spec(
        {
            "x": (4, 6),
            "a": (1, 6),
            "b": (9,),
            "axis": tensor_of((1,), DType.I32, np.array([1], np.int32)),
            "y": (1, 1),
        },
        "a = EXP(x)",
        "b = ADD(a, a)",
        ("y = SUM(b, axis)", {"keep_dims": True}),
        outputs="y b",
    )
    ours, theirs = pair(write_model(spec), **options)
    with ours:
        for a, b in zip(ours.get_output_details(), theirs.get_output_details(), strict=True):
            assert a["shape"].tolist() == b["shape"].tolist()
        assert [d["shape"].tolist() for d in ours.get_output_details()] == [[4, 1], [4, 6]]
        assert_runs_alike(ours, theirs, [values(4, 6)])


def test_runs_again_and_again_as_litert(options: Any) -> None:
    ours, theirs = pair(models.chain(), **options)
    with ours:
        for _ in range(3):
            assert_runs_alike(ours, theirs, [values(1, 3)])


def test_inputs_and_outputs_keep_the_files_order(options: Any) -> None:
    ours, theirs = pair(models.two_subgraphs(), **options)
    with ours:
        assert [d["name"] for d in ours.get_input_details()] == ["b", "a"]
        assert_runs_alike(ours, theirs, [values(2, 2), values(2, 2)])


def test_a_scalar_result_is_a_numpy_scalar_as_in_litert() -> None:
    ours, theirs = pair(models.scalar())
    assert_runs_alike(ours, theirs, [np.array(-2.5, np.float32)])
    assert isinstance(ours.get_tensor(1), np.float32)


def test_resize_then_run(options: Any) -> None:
    ours, theirs = pair(models.chain(), **options)
    with ours:
        for batch in (5, 2, 7, 1):
            for interpreter in (ours, theirs):
                interpreter.resize_tensor_input(0, [batch, 3], strict=True)
                interpreter.allocate_tensors()
            assert_runs_alike(ours, theirs, [values(batch, 3)])


def test_a_batch_of_none(options: Any) -> None:
    ours, theirs = pair(models.chain(), **options)
    with ours:
        for interpreter in (ours, theirs):
            interpreter.resize_tensor_input(0, [0, 3])
            interpreter.allocate_tensors()
        assert_runs_alike(ours, theirs, [values(0, 3)])


def test_resize_to_the_same_shape_keeps_everything(options: Any) -> None:
    with allocated(Interpreter(model_content=models.chain(), **options)) as ours:
        x = values(1, 3)
        ours.set_tensor(0, x)
        ours.resize_tensor_input(0, np.array([1, 3], np.int64))
        ours.allocate_tensors()
        np.testing.assert_array_equal(ours.get_tensor(0), x)
        ours.invoke()


def test_a_failed_resize_can_be_taken_back() -> None:
    ours, theirs = pair(models.chain())
    ours.resize_tensor_input(0, [5, 4])
    with pytest.raises(RuntimeError):
        ours.allocate_tensors()
    ours.resize_tensor_input(0, [1, 3])
    ours.allocate_tensors()
    assert_runs_alike(ours, theirs, [values(1, 3)])


def test_values_of_any_kind_are_data(options: Any) -> None:
    ours, theirs = pair(models.chain(), **options)
    x = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    with ours:
        assert_runs_alike(ours, theirs, [x])


def test_set_tensor_copies_whatever_the_layout(options: Any) -> None:
    with allocated(Interpreter(model_content=models.chain(), **options)) as ours:
        x = values(1, 3)
        wide = np.repeat(x, 2, axis=1)
        for same in (wide[:, ::2], np.asfortranarray(x), x.astype(">f4"), x.tolist()):
            ours.set_tensor(0, np.zeros((1, 3), np.float32))
            ours.set_tensor(0, same if isinstance(same, np.ndarray) else np.float32(same))
            np.testing.assert_array_equal(ours.get_tensor(0), x)
        wide[...] = 0
        np.testing.assert_array_equal(ours.get_tensor(0), x)


def test_get_tensor_gives_a_copy(options: Any) -> None:
    with Interpreter(model_content=models.chain(), **options) as ours:
        allocate_and_run(ours, {0: np.zeros((1, 3), np.float32)})
        first = ours.get_tensor(3)
        kept = first.copy()
        set_and_run(ours, {0: np.ones((1, 3), np.float32)})
        np.testing.assert_array_equal(first, kept)
        assert (ours.get_tensor(3) != kept).any()


def test_preserved_tensors_can_be_read_as_in_litert(options: Any) -> None:
    content = models.chain()
    ours = Interpreter(model_content=content, experimental_preserve_all_tensors=True, **options)
    with pytest.warns(UserWarning, match="preserve_all_tensors"):
        theirs = litert.Interpreter(model_content=content, experimental_preserve_all_tensors=True)
    x = values(1, 3)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        feed(interpreter, [x])
    np.testing.assert_allclose(ours.get_tensor(2), theirs.get_tensor(2), rtol=1e-6)
    np.testing.assert_allclose(ours.get_tensor(2), x + models.C, rtol=1e-6)


# Signatures


def test_a_signature_runs_without_allocation_and_resizes(options: Any) -> None:
    content = models.chain()
    theirs = litert.Interpreter(model_content=content).get_signature_runner("serve")
    with Interpreter(model_content=content, **options) as interpreter:
        ours = interpreter.get_signature_runner()
        for batch in (1, 4, 4, 2):
            x = values(batch, 3)
            got, expected = ours(image=x), theirs(image=x)
            assert list(got) == list(expected) == ["scores"]
            np.testing.assert_allclose(got["scores"], expected["scores"], rtol=1e-6, atol=1e-6)
        # It is the main subgraph, so the interpreter sees the same tensors.
        np.testing.assert_array_equal(interpreter.get_tensor(3), got["scores"])
        assert list(interpreter.get_input_details()[0]["shape"]) == [2, 3]


def test_signatures_of_several_subgraphs(options: Any) -> None:
    content = models.two_subgraphs()
    theirs = litert.Interpreter(model_content=content)
    u, v = values(2, 2), values(2, 2)
    with Interpreter(model_content=content, **options) as ours:
        for key, inputs in (("main", {"u": u, "v": v}), ("alone", {"x": u, "y": v})):
            got = ours.get_signature_runner(key)(**inputs)
            expected = theirs.get_signature_runner(key)(**inputs)
            assert list(got) == list(expected)
            for name in expected:
                np.testing.assert_allclose(got[name], expected[name], rtol=1e-6)
        np.testing.assert_allclose(ours.get_tensor(2, subgraph_index=1), u * v, rtol=1e-6)


def test_results_of_a_signature_are_copies() -> None:
    runner = Interpreter(model_content=models.chain()).get_signature_runner()
    first = runner(image=np.zeros((1, 3), np.float32))["scores"]
    kept = first.copy()
    runner(image=np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(first, kept)


# Reports


def test_the_report_without_a_delegate() -> None:
    interpreter = allocated(Interpreter(model_content=models.chain()))
    report = interpreter.report
    assert (report.total_nodes, report.delegated_nodes, report.backend) == (2, 0, "")
    assert [(r.node, r.op) for r in report.refusals] == [(0, "ADD"), (1, "MUL")]
    assert all("no delegate" in r.reason for r in report.refusals)


@pytest.mark.parametrize("device", [0, 1])
def test_the_report_with_a_delegate(device: int) -> None:
    with GpuDelegate(backend="cpu_ref", device=device) as delegate:
        interpreter = allocated(
            Interpreter(model_content=models.chain(), experimental_delegates=[delegate])
        )
        report = interpreter.report
        interpreter.close()
    assert (report.total_nodes, report.delegated_nodes, report.backend) == (2, 2, "cpu_ref")
    assert report.fully_delegated
    assert report.partitions == 1


# Real models


REAL = [
    "mobilenet_v1_0.25_224_float",
    "mobilenet_v2_1.0_224_f32",
    "movie_review_nl_classifier",
    "tflm_mnist_lstm_fp32",
]


@pytest.mark.parametrize("name", REAL)
def test_real_models_on_the_cpu(model_path: Callable[[str], Path], name: str) -> None:
    ours, theirs = pair(model_path(name).read_bytes())
    inputs = []
    for details in ours.get_input_details():
        shape, dtype = details["shape"], details["dtype"]
        inputs.append(RNG.random(shape).astype(dtype) if dtype is np.float32
                      else RNG.integers(0, 50, shape).astype(dtype))  # fmt: skip
    for a, b in zip(feed(ours, inputs), feed(theirs, inputs), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_real_models_state_is_kept_and_reset_as_in_litert(
    model_path: Callable[[str], Path], options: Any
) -> None:
    ours, theirs = pair(model_path("tflm_mnist_lstm_fp32").read_bytes(), **options)
    (details,) = theirs.get_input_details()
    x = [values(*details["shape"])]
    results = []
    with ours:
        for _ in range(3):
            for _ in range(2):
                a, b = feed(ours, x)[0], feed(theirs, x)[0]
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
                results.append(a)
            ours.reset_all_variables()
            theirs.reset_all_variables()
    np.testing.assert_array_equal(results[0], results[2])
    assert (results[0] != results[1]).any()


# `experimental_preserve_all_tensors` and `..._disable_delegate_node_fusion` with a device: what
# passes and kernels would merge is there, on the device, and equals what LiteRT keeps.


DRAW = np.random.default_rng(9)


def draw(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def mergeable() -> bytes:
    """A chain of which a device makes two or three kernels: padding, activation, arithmetic per
    channel, constants that fold, reshapes that move nothing, and a tail of elementwise ones."""
    image = (1, 5, 6, 3)
    inner = (1, 5, 6, 7)
    tensors = [
        TensorSpec("x", image),
        TensorSpec("pads", (4, 2), DType.I32, np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)),
        TensorSpec("padded", (1, 7, 8, 3)),
        TensorSpec("filter", (7, 3, 3, 3), DType.F16, draw(7, 3, 3, 3).astype(np.float16)),
        TensorSpec("wide", (7, 3, 3, 3)),
        TensorSpec("bias", (7,), data=draw(7)),
        TensorSpec("conv", inner),
        TensorSpec("relu", inner),
        TensorSpec("c", (7,), data=np.abs(draw(7)) + 1),
        TensorSpec("root", (7,)),
        TensorSpec("scaled", inner),
        TensorSpec("same", (1, 5, 6, 7)),
        TensorSpec("flat", (1, 210)),
        TensorSpec("tanh", (1, 210)),
        TensorSpec("sum", (1, 210)),
        TensorSpec("y", (1, 210)),
    ]
    at = {t.name: i for i, t in enumerate(tensors)}

    def operator(op: str, sources: str, result: str, **fields: Any) -> OperatorSpec:
        return OperatorSpec(op, fields, [at[n] for n in sources.split()], [at[result]])

    operators = [
        operator("PAD", "x pads", "padded"),
        operator("DEQUANTIZE", "filter", "wide"),
        operator("CONV_2D", "padded wide bias", "conv", padding=1, stride_h=1, stride_w=1),
        operator("RELU", "conv", "relu"),
        operator("RSQRT", "c", "root"),
        operator("MUL", "relu root", "scaled"),
        operator("RESHAPE", "scaled", "same", new_shape=(1, 5, 6, 7)),
        operator("RESHAPE", "same", "flat", new_shape=(1, 210)),
        operator("TANH", "flat", "tanh"),
        operator("ADD", "tanh flat", "sum"),
        operator("SOFTMAX", "sum", "y", beta=1.0),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [at["y"]]))


def quantized() -> bytes:
    """int8: a convolution, a clamp, a sum and a change of scale."""
    activation = Quantization((0.05,), (3,))
    finer = Quantization((0.025,), (-7,))
    scales = tuple(float(s) for s in np.abs(draw(5)) * 0.01 + 0.005)
    filters = Quantization(scales, (0,) * 5, 0)
    offsets = Quantization(tuple(0.05 * s for s in scales), (0,) * 5, 0)
    image, inner = (1, 4, 5, 3), (1, 4, 5, 5)
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1}
    return small_model(
        {
            "x": tensor_of(image, DType.I8, None, activation),
            "filter": tensor_of(
                (5, 1, 1, 3), DType.I8, DRAW.integers(-127, 128, (5, 1, 1, 3), np.int8), filters
            ),
            "bias": tensor_of(
                (5,), DType.I32, DRAW.integers(-300, 300, 5).astype(np.int32), offsets
            ),
            "conv": tensor_of(inner, DType.I8, None, activation),
            "relu": tensor_of(inner, DType.I8, None, activation),
            "sum": tensor_of(inner, DType.I8, None, activation),
            "y": tensor_of(inner, DType.I8, None, finer),
        },
        ("conv = CONV_2D(x, filter, bias)", fields, {"version": 3}),
        ("relu = RELU(conv)", {}, {"version": 2}),
        ("sum = ADD(conv, relu)", {}, {"version": 2}),
        ("y = QUANTIZE(sum)", {}, {"version": 2}),
    )


@pytest.fixture(scope="module")
def delegate() -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


def ours(content: bytes, delegate: Any, **arguments: Any) -> Any:
    return allocated(
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate], **arguments)
    )


def theirs(content: bytes) -> Any:
    return allocated(
        litert.Interpreter(
            model_content=content,
            experimental_preserve_all_tensors=True,
            # XNNPACK leaves results of constants in f16 unwritten, whatever it is told.
            experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
    )


def feed_preserve_all(interpreter: Any, x: Any) -> Any:
    set_and_run(interpreter, {0: x})
    return interpreter


def test_every_tensor_of_a_chain_that_would_be_merged(delegate: Any) -> None:
    content = mergeable()
    kept = theirs(content)
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        report = made.report
        assert report.fully_delegated
        assert report.partitions == 1
        for _ in range(2):
            x = draw(1, 5, 6, 3)
            feed_preserve_all(made, x)
            feed_preserve_all(kept, x)
            for detail in made.get_tensor_details():
                index, name = detail["index"], detail["name"]
                np.testing.assert_allclose(
                    made.get_tensor(index), kept.get_tensor(index), rtol=1e-5, atol=1e-6,
                    err_msg=name,
                )  # fmt: skip
        kernels = report.dispatches
    with ours(content, delegate) as plain:
        assert plain.report.dispatches < kernels / 2
        feed_preserve_all(plain, x)
        with pytest.raises(tflgpu.InputError, match=r"\('relu'\) is an intermediate result"):
            plain.get_tensor(7)
        last = made_output(kept)
        np.testing.assert_allclose(made_output(plain), last, rtol=1e-5, atol=1e-6)


def made_output(interpreter: Any) -> Any:
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_a_quantized_model_keeps_stored_numbers(delegate: Any) -> None:
    content = quantized()
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        kept = theirs(content)
        assert made.report.fully_delegated
        x = DRAW.integers(-128, 128, (1, 4, 5, 3), np.int8)
        feed_preserve_all(made, x)
        feed_preserve_all(kept, x)
        for name, index in {"conv": 3, "relu": 4, "sum": 5, "y": 6}.items():
            got, want = made.get_tensor(index), kept.get_tensor(index)
            assert got.dtype == want.dtype == np.int8
            assert len(np.unique(got)) > 10, name
            steps = np.abs(got.astype(int) - want.astype(int))
            assert steps.max() <= (2 if name == "y" else 1), name  # whose steps are half as large
            assert steps.mean() < 0.1, name


def test_what_a_device_refuses_is_kept_too() -> None:
    content = interpreter_models.two_subgraphs()
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, min_nodes_per_partition=99) as refuses,
        ours(content, refuses, experimental_preserve_all_tensors=True) as made,
    ):
        assert made.report.delegated_nodes == 0
        set_and_run(made, {0: draw(2, 2)})
        np.testing.assert_array_equal(made.get_tensor(2), made.get_tensor(0))


def test_it_survives_a_resize(delegate: Any) -> None:
    content = interpreter_models.chain()
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        made.resize_tensor_input(0, [4, 3])
        made.allocate_tensors()
        x = draw(4, 3)
        feed_preserve_all(made, x)
        np.testing.assert_allclose(made.get_tensor(2), x + interpreter_models.C, rtol=1e-6)
        runner = made.get_signature_runner()
        runner(image=x[:2])
        np.testing.assert_allclose(made.get_tensor(2), x[:2] + interpreter_models.C, rtol=1e-6)


def test_fusion_can_be_switched_off(delegate: Any) -> None:
    content = mergeable()
    x = draw(1, 5, 6, 3)
    with ours(content, delegate, experimental_disable_delegate_node_fusion=True) as made:
        report = made.report
        assert report.fully_delegated
        # One each for PAD, CONV_2D, RELU, MUL, TANH, ADD and SOFTMAX. What RESHAPE does is a view,
        # or one more where the channels' padding differs; what DEQUANTIZE and RSQRT make was known
        # when the file was read.
        assert report.dispatches == 8
        feed_preserve_all(made, x)
        with ours(content, delegate) as merged:
            assert merged.report.dispatches <= 4
            feed_preserve_all(merged, x)
            np.testing.assert_allclose(made_output(made), made_output(merged), rtol=1e-5)
        with pytest.raises(tflgpu.InputError, match="is an intermediate result"):
            made.get_tensor(7)
