"""GpuDelegate inside LiteRT's interpreter: what it takes, what it leaves, and what comes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from flatbuffers import flexbuffers
from tflgpu.conformance.samples import materialize
from tflgpu.hosts import callbacks
from tflgpu.hosts.cdef import DYNAMIC
from tflgpu.hosts.kernel import SubsetKernel
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.registry import registry
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.hosts.host_models import chain, host, plain, run, samples_model
from tests.running import raising, set_and_run
from tests.small_models import small_model, tensor_of

#: The NumPy references take nodes as they are; the NumPy kernels take plans, as a GPU does.
pytestmark = pytest.mark.usefixtures("left_out")
DEVICES = [("cpu_ref", 0), ("cpu_ref", 1)]


@pytest.fixture(params=DEVICES, ids=["nodes", "kernels"])
def delegate(request: Any) -> Any:
    backend, device = request.param
    with tflgpu.GpuDelegate(backend=backend, device=device) as made:
        yield made


def numbers(shape: tuple[int, ...], seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


def test_a_whole_model(delegate: Any) -> None:
    model = chain("ABS", "EXP", "NEG")
    interpreter = host(model, delegate)
    (report,) = delegate.reports
    assert report.fully_delegated
    assert (report.total_nodes, report.partitions) == (3, 1)
    assert report.backend == "cpu_ref"
    for seed in range(3):
        x = numbers((2, 5), seed)
        np.testing.assert_allclose(run(interpreter, x), [-np.exp(np.abs(x))], rtol=1e-6)
        np.testing.assert_allclose(run(interpreter, x), run(plain(model), x), rtol=1e-6)


def test_an_operator_that_nobody_here_knows(delegate: Any) -> None:
    """FAKE_QUANT is a builtin of LiteRT's without a definition here."""
    model = chain(
        "ABS",
        "EXP",
        "FAKE_QUANT",
        "NEG",
        fields={"FAKE_QUANT": {"min": 0.0, "max": 9.0, "num_bits": 8}},
    )
    interpreter = host(model, delegate)
    (report,) = delegate.reports
    assert (report.total_nodes, report.delegated_nodes, report.partitions) == (4, 3, 2)
    (refusal,) = report.refusals
    assert (refusal.node, refusal.op) == (2, "FAKE_QUANT")
    assert "a plugin can define it" in refusal.reason
    x = numbers((2, 5))
    # Rounded to steps of 9 / 255, where a last bit of EXP may decide.
    np.testing.assert_allclose(run(interpreter, x), run(plain(model), x), atol=9 / 255)
    np.testing.assert_allclose(
        run(interpreter, x), [-np.exp(np.abs(x)).clip(0, 9)], atol=9 / 510 + 1e-5
    )


def test_a_custom_operator_of_the_host(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that LiteRT has, as if nobody here had defined it."""
    known = {n: op for n, op in registry().ops().items() if n != "AudioSpectrogram"}
    monkeypatch.setattr(registry(), "_merged", known)
    options = flexbuffers.Builder()
    with options.Map():
        options.Key("window_size"), options.Int(16)
        options.Key("stride"), options.Int(8)
        options.Key("magnitude_squared"), options.Bool(True)
    tensors = [
        TensorSpec(n, s)
        for n, s in [("a", (40, 1)), ("b", (40, 1)), ("c", (1, 4, 9)), ("d", (1, 4, 9))]
    ]
    operators = [
        OperatorSpec("NEG", {}, (0,), (1,)),
        OperatorSpec("AudioSpectrogram", {}, (1,), (2,), custom_options=bytes(options.Finish())),
        OperatorSpec("SQRT", {}, (2,), (3,)),
    ]
    model = write_model(ModelSpec(tensors, operators, (0,), (3,)))
    interpreter = host(model, delegate)
    (report,) = delegate.reports
    assert [r.node for r in report.refusals] == [1]
    x = numbers((40, 1))
    np.testing.assert_allclose(run(interpreter, x), run(plain(model), x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("open_shape", [True, False])
def test_shapes_that_numbers_decide(delegate: Any, open_shape: bool) -> None:
    """WHERE makes as many rows as there are truths. Where the file says that this is open, what
    follows stays with LiteRT; where it does not, it is compiled for each shape as it comes."""
    signature = (-1, 1) if open_shape else None
    model = small_model(
        {
            "x": (7,),
            "zero": tensor_of((1,), data=[0.0]),
            "positive": tensor_of((7,), DType.BOOL),
            "where": tensor_of((1, 1), DType.I64, shape_signature=signature),
            "float": tensor_of((1, 1), shape_signature=signature),
            "y": tensor_of((1, 1), shape_signature=signature),
        },
        "positive = GREATER(x, zero)",
        "where = WHERE(positive)",
        ("float = CAST(where)", {"in_data_type": 4, "out_data_type": 0}),
        "y = SQUARE(float)",
    )
    interpreter = host(model, delegate)
    (report,) = delegate.reports
    stays = {r.node for r in report.refusals}
    # Kernels have no i64, so that CAST stays in either case.
    assert stays - {2} == ({1, 3} if open_shape else {1})
    if open_shape:
        assert "not known before the model runs" in report.refusals[-1].reason
    for count in (3, 7, 1, 3, 0, 2, 5, 6, 4):
        x = np.full(7, -1, np.float32)
        x[:count] = 1
        if not count:  # LiteRT gives out no tensor without elements
            set_and_run(interpreter, {0: x})
            assert interpreter.get_output_details()[0]["shape"].tolist() == [0, 1]
            continue
        (y,) = run(interpreter, x)
        np.testing.assert_array_equal(y, np.arange(count, dtype=np.float32)[:, None] ** 2)


def test_a_shape_that_is_an_input(delegate: Any) -> None:
    model = small_model(
        {"x": (2, 6), "shape": tensor_of((2,), DType.I32), "y": (2, 6), "z": (2, 6), "w": (2, 6)},
        "y = ABS(x)",
        "z = RESHAPE(y, shape)",
        "w = NEG(z)",
    )
    x = numbers((2, 6))
    for shape in ((3, 4), (12, 1), (2, 6)):
        # LiteRT's RESHAPE goes by the first shape that it is given, so each has an interpreter.
        interpreter = host(model, delegate)
        assert [r.node for r in delegate.reports[-1].refusals] == [1, 2]
        (y,) = run(interpreter, x, np.array(shape, np.int32))
        np.testing.assert_array_equal(y, -np.abs(x).reshape(shape))


@pytest.mark.parametrize("middle", ["SQUARE", "FAKE_QUANT"])
def test_resized_inputs(delegate: Any, middle: str) -> None:
    model = chain(
        "ABS",
        middle,
        "NEG",
        shape=(1, 5),
        signature=(-1, 5),
        fields={"FAKE_QUANT": {"min": 0.0, "max": 4.0, "num_bits": 8}},
    )
    interpreter, reference = host(model, delegate), plain(model)
    for rows in (1, 3, 7, 3, 1):
        for each in (interpreter, reference):
            each.resize_tensor_input(0, (rows, 5))
            each.allocate_tensors()
        x = numbers((rows, 5), rows)
        for _ in range(2):
            got, expected = run(interpreter, x), run(reference, x)
            assert got[0].shape == (rows, 5)
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=4 / 255)


def test_signatures_and_subgraphs(delegate: Any) -> None:
    """Two signatures, each a subgraph of its own."""

    def twice(name: str, op: str) -> SubgraphSpec:
        tensors = [TensorSpec(f"{name}{i}", (3,)) for i in range(3)]
        operators = [OperatorSpec(op, {}, (i,), (i + 1,)) for i in range(2)]
        return SubgraphSpec(tensors, operators, (0,), (2,), name)

    first, second = twice("a", "SQUARE"), twice("b", "EXP")
    signatures = [
        SignatureInfo("squares", 0, {"x": 0}, {"y": 2}),
        SignatureInfo("powers", 1, {"x": 0}, {"y": 2}),
    ]
    model = write_model(
        ModelSpec(first.tensors, first.operators, (0,), (2,), signatures, "main", [second])
    )
    interpreter = host(model, delegate)
    assert [r.fully_delegated for r in delegate.reports] == [True, True]
    x = numbers((3,))
    squares, powers = (interpreter.get_signature_runner(k) for k in ("squares", "powers"))
    for _ in range(2):
        np.testing.assert_allclose(squares(x=x)["y"], x**4, rtol=1e-6)
        np.testing.assert_allclose(powers(x=x)["y"], np.exp(np.exp(x)), rtol=1e-5)


def test_the_body_of_a_loop(delegate: Any) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tflite"))
    from samples import loop

    interpreter = host(write_model(loop()), delegate)
    assert [(r.total_nodes, r.delegated_nodes) for r in delegate.reports] == [
        (1, 0),
        (1, 1),
        (1, 1),
    ]
    assert "control flow" in delegate.reports[0].refusals[0].reason
    np.testing.assert_array_equal(run(interpreter, np.array([2], np.int32)), [[11]])


def test_state_is_that_of_litert(delegate: Any) -> None:
    """An LSTM on the device keeps its state in LiteRT's tensors, which can set it to zero."""
    op = builtin_ops()["UNIDIRECTIONAL_SEQUENCE_LSTM"]
    case = materialize(op, op.samples()[0])
    model = samples_model([case])
    interpreter, reference = host(model, delegate), plain(model)
    assert delegate.reports[0].fully_delegated
    x = case.arrays[case.graph.inputs[0].id]
    for step in range(4):
        if step == 2:
            interpreter.reset_all_variables(), reference.reset_all_variables()
        got, expected = run(interpreter, x), run(reference, x)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        for value in case.variables:
            a, b = (i.get_tensor(value.id) for i in (interpreter, reference))
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_table_that_only_litert_reads(delegate: Any) -> None:
    """f16 weights of an operator that stays: their DEQUANTIZE stays with it."""
    weights = numbers((4, 3)).astype(np.float16)
    tensors = [
        TensorSpec("x", (2, 3)),
        TensorSpec("h", (4, 3), DType.F16, weights),
        TensorSpec("w", (4, 3)),
        TensorSpec("y", (2, 4)),
        TensorSpec("z", (2, 4)),
    ]
    operators = [
        OperatorSpec("DEQUANTIZE", {}, (1,), (2,), version=3),
        OperatorSpec("FULLY_CONNECTED", {}, (0, 2, -1), (3,), version=1),
        OperatorSpec("ABS", {}, (3,), (4,)),
    ]
    host(write_model(ModelSpec(tensors, operators, (0,), (4,))), delegate)
    assert delegate.reports[-1].fully_delegated
    operators[1] = OperatorSpec("FAKE_QUANT", {"min": -1.0, "max": 1.0, "num_bits": 8}, (2,), (3,))
    tensors[3:] = [TensorSpec("y", (4, 3)), TensorSpec("z", (4, 3))]
    operators[2] = OperatorSpec("ADD", {}, (0, 3), (4,))
    tensors[0] = TensorSpec("x", (4, 3))
    parts = write_model(ModelSpec(tensors, operators, (0,), (4,)))
    interpreter = host(parts, delegate)
    report = delegate.reports[-1]
    assert [r.node for r in report.refusals] == [1]
    assert [o.place.value for o in report.operators] == ["folded", "cpu", "device"]
    assert (report.delegated_nodes, report.total_nodes) == (2, 3)
    x = numbers((4, 3))
    np.testing.assert_allclose(run(interpreter, x), run(plain(parts), x), rtol=1e-6)


def test_weights_that_two_subsets_and_litert_read(delegate: Any) -> None:
    """LiteRT would put DEQUANTIZE into the first subset, which would hand the weights to the second
    in every run. It is in neither: both have the weights as constants, and LiteRT has its own."""
    rounding = {"min": -9.0, "max": 9.0, "num_bits": 8}
    model = small_model(
        {
            "x": (4, 3),
            "h": tensor_of((4, 3), DType.F16, numbers((4, 3)).astype(np.float16)),
            **dict.fromkeys(("w", "a", "b", "c", "d", "y"), (4, 3)),
        },
        ("w = DEQUANTIZE(h)", {}, {"version": 3}),
        "a = ADD(x, w)",
        ("b = FAKE_QUANT(a)", rounding),
        ("c = FAKE_QUANT(w)", rounding),
        "d = MUL(b, w)",
        "y = SUB(d, c)",
    )
    interpreter = host(model, delegate)
    report = delegate.reports[-1]
    kernels = [k for k, _ in callbacks._kernels.values() if isinstance(k, SubsetKernel)]
    edges = sorted((k._info.inputs, k._info.outputs) for k in kernels)
    del kernels
    x = numbers((4, 3))
    np.testing.assert_allclose(run(interpreter, x), run(plain(model), x), rtol=1e-6)
    assert [r.node for r in report.refusals] == [2, 3]
    assert [p.operators for p in report.parts] == [(1,), (4, 5)]
    assert edges == [((0,), (3,)), ((4, 5), (7,))]


def test_quantized_operators_can_be_kept_out() -> None:
    def scaled(scale: float) -> Quantization:
        return Quantization((scale,), (3,))

    model = small_model(
        {
            "x": tensor_of((2, 6), DType.I8, quantization=scaled(0.1)),
            "y": tensor_of((2, 6), DType.I8, quantization=scaled(0.2)),
            "z": (2, 6),
        },
        ("y = QUANTIZE(x)", {}, {"version": 2}),
        ("z = DEQUANTIZE(y)", {}, {"version": 2}),
    )
    x = np.arange(-6, 6, dtype=np.int8).reshape(2, 6) * 20 + 1  # nothing halfway between two steps
    expected = run(plain(model), x)
    for allowed in (True, False):
        with tflgpu.GpuDelegate(backend="cpu_ref", quantized_models_allowed=allowed) as delegate:
            np.testing.assert_allclose(run(host(model, delegate), x), expected, rtol=1e-6)
            (report,) = delegate.reports
            assert report.delegated_nodes == (2 if allowed else 0)
            assert all("quantized_models_allowed" in r.reason for r in report.refusals)


def test_an_input_gets_a_fixed_shape_after_an_open_one(delegate: Any) -> None:
    """Outputs were made dynamic and have no memory; then their shapes are known after all."""
    interpreter = host(chain("ABS", "NEG"), delegate)
    (kernel,) = [k for k, _ in callbacks._kernels.values() if isinstance(k, SubsetKernel)]
    made_ready = kernel.prepare

    def open_first(context: Any) -> None:
        tensor = context.tensors[0]
        kind, tensor.allocation_type = tensor.allocation_type, DYNAMIC
        made_ready(context)
        tensor.allocation_type = kind
        assert not context.tensors[2].data
        made_ready(context)

    kernel.prepare = open_first  # type: ignore[method-assign]
    interpreter.resize_tensor_input(0, (3, 5))
    interpreter.allocate_tensors()
    x = numbers((3, 5))
    np.testing.assert_array_equal(run(interpreter, x), [-np.abs(x)])


@pytest.mark.parametrize("wrong", [1, 3, 6])
def test_an_operator_that_is_wrong_by_its_definition(delegate: Any, wrong: int) -> None:
    """By its definition here: it stays with LiteRT, and the others go to the device."""
    ops = ["ABS"] * 7
    ops[wrong] = "SOFTMAX"
    model = chain(*ops, fields={"SOFTMAX": {"beta": 2.0}})

    ops_here = dict(delegate.provider.ops)
    ops_here["SOFTMAX"] = attrs.evolve(
        ops_here["SOFTMAX"], infer=raising(tflgpu.ModelError("takes no operand of this kind"))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(delegate.provider), "ops", property(lambda _: ops_here))
        interpreter = host(model, delegate)
    (refusal,) = delegate.reports[-1].refusals
    assert refusal.node == wrong
    assert "takes no operand of this kind" in refusal.reason
    x = numbers((2, 5))
    np.testing.assert_allclose(run(interpreter, x), run(plain(model), x), rtol=1e-5)


# Where LiteRT's tensors are the session's arrays: no copies in a run, and nothing lost or left
# behind.


SHAPE = (2, 5)
X = np.arange(10, dtype=np.float32).reshape(SHAPE) - 4


@pytest.fixture
def delegate_edges() -> Any:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def of_tensor(interpreter: Any, index: int) -> int:
    return address(interpreter.tensor(index)())


def only_kernel() -> SubsetKernel:
    (found,) = [k for k, _ in callbacks._kernels.values() if isinstance(k, SubsetKernel)]
    return found


def test_a_whole_model_is_not_copied(delegate_edges: Any) -> None:
    inside = host(chain("NEG", "EXP"), delegate_edges)
    np.testing.assert_allclose(run(inside, X)[0], np.exp(-X), rtol=1e-6)
    arrays = only_kernel()._session.arrays
    assert of_tensor(inside, 0) == address(arrays[0])
    assert of_tensor(inside, 2) == address(arrays[2])
    for factor in (0.5, -1):
        np.testing.assert_allclose(run(inside, factor * X)[0], np.exp(-factor * X), rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_is(delegate_edges: Any, place: int) -> None:
    """Others read or write its tensors."""
    ops = ["NEG", "EXP"]
    ops.insert(place, "FAKE_QUANT")
    model = chain(*ops, fields={"FAKE_QUANT": {"min": -8.0, "max": 8.0, "num_bits": 8}})
    inside = host(model, delegate_edges)
    assert len(delegate_edges.reports[-1].refusals) == 1
    np.testing.assert_allclose(run(inside, X), run(plain(model), X), rtol=1e-5)
    for kernel, _ in callbacks._kernels.values():
        assert isinstance(kernel, SubsetKernel)
        for index in (*kernel._info.inputs, *kernel._info.outputs):
            assert of_tensor(inside, index) != address(kernel._session.arrays[index])


def two_inputs() -> bytes:
    """NEG of each of two inputs of open shapes."""
    tensors = [TensorSpec(f"t{i}", SHAPE, shape_signature=(-1, 5)) for i in range(4)]
    operators = [OperatorSpec("NEG", {}, (i,), (i + 2,)) for i in range(2)]
    return write_model(ModelSpec(tensors, operators, (0, 1), (2, 3)))


def test_an_input_keeps_its_contents_where_another_is_resized(delegate_edges: Any) -> None:
    """As without a delegate."""
    for inside in (plain(two_inputs()), host(two_inputs(), delegate_edges)):
        run(inside, X, X)
        inside.set_tensor(0, 2 * X)  # into the session's array
        inside.resize_tensor_input(1, (7, 5))
        inside.allocate_tensors()
        np.testing.assert_array_equal(inside.get_tensor(0), 2 * X)
        inside.set_tensor(1, np.ones((7, 5), np.float32))
        for _ in range(2):
            inside.invoke()
            np.testing.assert_array_equal(inside.get_tensor(2), -2 * X)
            np.testing.assert_array_equal(inside.get_tensor(3), -np.ones((7, 5)))


def test_a_resized_input_has_no_memory_before_it_is_allocated(delegate_edges: Any) -> None:
    """So that nobody writes beyond the end of the array that it was."""
    for inside in (plain(two_inputs()), host(two_inputs(), delegate_edges)):
        run(inside, X, X)
        inside.resize_tensor_input(1, (70_000, 5))
        with pytest.raises(ValueError, match="allocate_tensors"):
            inside.set_tensor(1, np.ones((70_000, 5), np.float32))
        inside.allocate_tensors()
        large = np.ones((70_000, 5), np.float32)
        np.testing.assert_array_equal(run(inside, X, large)[1], -large)


def test_a_session_that_is_replaced_takes_inputs_along(delegate_edges: Any) -> None:
    """One run ends in the middle; the next one opens a session anew."""
    inside = host(chain("NEG", "EXP"), delegate_edges)
    run(inside, X)
    kernel = only_kernel()
    before = kernel._session
    arenas = [edge._arena for edge in (*kernel._edges.before, *kernel._edges.after)]
    inside.set_tensor(0, 2 * X)
    before._running = before.parts[0]  # as a driver's error leaves it
    assert before.is_broken
    for _ in range(2):
        inside.invoke()
        np.testing.assert_allclose(inside.get_tensor(2), np.exp(-2 * X), rtol=1e-6)
    assert kernel._session is not before
    # What LiteRT gets back one day is its own, not what the other session had.
    assert [edge._arena for edge in (*kernel._edges.before, *kernel._edges.after)] == arenas


PROGRAM = """
import gc, os, sys
import numpy as np, tflgpu
from ai_edge_litert.interpreter import Interpreter

content = open(sys.argv[1], "rb").read()
delegate = tflgpu.GpuDelegate(backend=sys.argv[2])
interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
interpreter.allocate_tensors()
x = np.linspace(-1, 1, 3 * 5000, dtype=np.float32).reshape(3, 5000)
interpreter.set_tensor(0, x)
interpreter.invoke()

def places():
    return {interpreter.tensor(i)().__array_interface__["data"][0] for i in (0, 2)}

shared = places()
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    assert not places() & shared  # a driver's memory may not be there in a child
    interpreter.set_tensor(0, 2 * x)
    assert (interpreter.get_tensor(0) == 2 * x).all()
    interpreter.get_tensor(2)
    os._exit(0)
assert child is None or os.waitpid(child, 0)[1] == 0
assert places() == shared
interpreter.invoke()
delegate.close()
del delegate
gc.collect()
np.testing.assert_allclose(interpreter.get_tensor(2), np.exp(-x), rtol=1e-5)
interpreter.set_tensor(0, 2 * x)
assert (interpreter.get_tensor(0) == 2 * x).all()
try:
    interpreter.invoke()
except RuntimeError as error:
    assert "closed" in str(error), error
else:
    raise AssertionError("it ran")
del interpreter
gc.collect()
print("well")
"""


@pytest.mark.parametrize("backend", ["opencl", "vulkan"])
def test_memory_of_a_driver_outlives_the_delegate_and_is_not_a_childs(
    tmp_path: Any, backend: str
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain("NEG", "EXP", shape=(3, 5000)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), backend],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "well"
