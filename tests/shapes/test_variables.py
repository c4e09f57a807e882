"""State tensors (``is_variable``) where no operator keeps them, and states that are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.samples import materialize
from tflgpu.errors import ModelError, TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import set_and_run
from tests.small_models import small_model, tensor_of

SEQUENCE = "UNIDIRECTIONAL_SEQUENCE_LSTM"
OUTPUT_STATE, CELL_STATE = 18, 19


def lstm(
    op: str = SEQUENCE,
    variables: Sequence[int] = (),
    plain: Sequence[int] = (),
    constants: Sequence[int] = (),
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    same: bool = False,
) -> ModelSpec:
    """An LSTM with some of its operands turned into something else."""
    definition = builtin_ops()[op]
    sample = definition.samples()[0]
    case = materialize(definition, sample)
    node, graph = case.node, case.graph
    tensors = [
        TensorSpec(v.name, v.shape, v.dtype, v.data, v.quant, is_variable=v.is_variable)
        for v in (graph.values[i] for i in range(len(graph.values)))
    ]
    given = [-1 if v is None else v.id for v in node.inputs]
    ids = [v.id for v in graph.inputs]
    for i in variables:
        tensors[given[i]] = attrs.evolve(tensors[given[i]], is_variable=True, data=None)
    for i in plain:
        tensors[given[i]] = attrs.evolve(tensors[given[i]], is_variable=False)
        ids.append(given[i])
    for i in constants:
        zeros = np.zeros(tensors[given[i]].shape, np.float32)
        tensors[given[i]] = attrs.evolve(tensors[given[i]], is_variable=False, data=zeros)
    ids = [i for i in ids if not tensors[i].is_variable] + [given[i] for i in inputs]
    results = [v.id for v in graph.outputs] + [given[i] for i in outputs]
    if same:
        given[CELL_STATE] = given[OUTPUT_STATE]
    operator = OperatorSpec(
        op, dict(sample.fields), given, [v.id for v in node.outputs], sample.version
    )
    return ModelSpec(tensors, [operator], ids, results)


def state(name: str, shape: Sequence[int] = (2, 3), dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(name, shape, dtype, is_variable=True)


def plain(op: str) -> ModelSpec:
    """An operator without state that reads a variable."""
    extra = {
        "ADD": TensorSpec("a", (2, 3)),
        "RESHAPE": TensorSpec("a", (2,), DType.I32, [2, 3]),
        "CONCATENATION": TensorSpec("a", (0, 3), data=np.zeros((0, 3), np.float32)),
    }
    tensors = [state("v"), TensorSpec("y", (2, 3)), *([extra[op]] if op in extra else [])]
    operands = (0, 2) if op in extra else (0,)
    inputs = [2] if op == "ADD" else []
    fields = {"axis": 0} if op == "CONCATENATION" else {}
    return ModelSpec(tensors, [OperatorSpec(op, fields, operands, (1,))], inputs, (1,))


UNSUPPORTED = {
    "ADD": plain("ADD"),
    "RELU": plain("RELU"),
    "RESHAPE": plain("RESHAPE"),
    "CONCATENATION": plain("CONCATENATION"),
    "weights": lstm(variables=(2,)),
    "bias": lstm(variables=(13,)),
    "input": lstm(variables=(0,)),
    "one for both states": lstm(same=True),
    "basic: weights": lstm("LSTM", variables=(2,)),
    "basic: previous output": lstm("LSTM", variables=(1,)),
}
MALFORMED = {
    "a plain tensor as state": lstm(plain=(OUTPUT_STATE,)),
    "plain tensors as states": lstm(plain=(OUTPUT_STATE, CELL_STATE)),
    "a constant as state": lstm(constants=(CELL_STATE,)),
    "a state written after it was read": ModelSpec(
        [TensorSpec("x", (2, 3)), state("v"), TensorSpec("n", (1,), DType.I32)],
        [OperatorSpec("SHAPE", {"out_type": 2}, (1,), (2,)), OperatorSpec("RELU", {}, (0,), (1,))],
        (0,), (1,),
    ),
}  # fmt: skip
NO_ARRAYS = {
    f"{dtype.value} {place}": ModelSpec(
        [TensorSpec("x", (2,)), TensorSpec("y", (2,)), TensorSpec("z", (2,), dtype, is_variable=v)],
        [OperatorSpec("RELU", {}, (0,), (1,))],
        (0, 2) if place == "input" else (0,),
        (1, 2) if place != "input" else (1,),
    )
    for dtype in (DType.BF16, DType.RESOURCE, DType.I4)
    for place, v in (("input", False), ("state", True))
    if (dtype, place) != (DType.I4, "input")  # a byte each there
}


@pytest.fixture(params=["none", "cpu_ref", "opencl"])
def allocate(
    request: pytest.FixtureRequest, require_backend: Callable[[str], object]
) -> Callable[[ModelSpec], None]:
    """Makes an interpreter and prepares it, then closes both."""

    def allocated(spec: ModelSpec) -> None:
        content = write_model(spec)
        if request.param == "none":
            with Interpreter(model_content=content) as interpreter:
                interpreter.allocate_tensors()
                interpreter.invoke()
            return
        require_backend(request.param)
        with (
            GpuDelegate(backend=request.param) as delegate,
            Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
        ):
            interpreter.allocate_tensors()
            interpreter.invoke()

    return allocated


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_variable_that_the_operator_does_not_keep(
    name: str, allocate: Callable[[ModelSpec], None]
) -> None:
    with pytest.raises(UnsupportedError, match=r"variable.*state"):
        allocate(UNSUPPORTED[name])


@pytest.mark.parametrize("name", MALFORMED)
def test_a_state_that_is_no_variable(name: str, allocate: Callable[[ModelSpec], None]) -> None:
    with pytest.raises(
        ModelError,
        match=r"must be a variable .*tensor \d+ \('\w+'\), an ordinary one; LiteRT refuses it too"
        r"|must be a variable, but is absent|writes tensor 1 .*a variable",
    ):
        allocate(MALFORMED[name])


def test_a_variable_that_is_written_before_it_is_read_is_a_plain_result(litert: Any) -> None:
    spec = ModelSpec(
        [TensorSpec("x", (2, 3)), state("v"), TensorSpec("y", (2, 3))],
        [OperatorSpec("RELU", {}, (0,), (1,)), OperatorSpec("ADD", {}, (1, 0), (2,))],
        (0,), (2, 1),
    )  # fmt: skip
    content = write_model(spec)
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    outputs = []
    with (
        GpuDelegate(backend="cpu_ref", allow_fallback=False) as delegate,
        Interpreter(model_content=content) as plain,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as delegated,
    ):
        for interpreter in (litert.Interpreter(model_content=content), plain, delegated):
            interpreter.allocate_tensors()
            for scale in (1, -2):
                set_and_run(interpreter, {0: x * np.float32(scale)})
                outputs.append([interpreter.get_tensor(i).copy() for i in (2, 1)])
    for got in (outputs[2:4], outputs[4:]):
        np.testing.assert_array_equal(got, outputs[:2])


def made_once(value: float, dtype: DType = DType.F16, twice: bool = False) -> bytes:
    """An LSTM whose output state a DEQUANTIZE makes of a constant, as converters write where
    weights have 16 bits."""
    spec = lstm()
    (operator,) = spec.operators
    index = operator.inputs[OUTPUT_STATE]
    shape = spec.tensors[index].shape
    whole = dtype is DType.I8
    data = np.full(shape, value * 10 if whole else value, np.int8 if whole else np.float16)
    quant = Quantization((0.1,), (0,)) if whole else None
    tensors = [*spec.tensors, TensorSpec("begin", shape, dtype, data, quant)]
    before = OperatorSpec("DEQUANTIZE", {}, (len(spec.tensors),), (index,))
    operators, outputs = [before, operator], list(spec.outputs)
    if twice:
        tensors.append(TensorSpec("y", shape))
        operators.insert(1, OperatorSpec("NEG", {}, (index,), (len(tensors) - 1,)))
        outputs.append(len(tensors) - 1)
    return write_model(ModelSpec(tensors, operators, spec.inputs, outputs))


def runs(interpreter: Any) -> list[Array]:
    """Results of two runs, and of one after `reset_all_variables`."""
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for source in interpreter.get_input_details():
        given = rng.uniform(-1, 1, source["shape"]).astype(np.float32)
        interpreter.set_tensor(source["index"], given)
    (output,) = interpreter.get_output_details()
    results = []
    for again in (False, False, True):
        if again:
            interpreter.reset_all_variables()
        interpreter.invoke()
        results.append(interpreter.get_tensor(output["index"]).copy())
    return results


@pytest.mark.parametrize("dtype", [DType.F16, DType.I8])
def test_a_state_that_is_made_of_a_constant_is_made_once(dtype: DType, litert: Any) -> None:
    # LiteRT runs DEQUANTIZE of a constant once; every later run goes on from what the last one
    # left.
    content = made_once(0, dtype)
    expected = runs(litert.Interpreter(model_content=content))
    assert not np.allclose(expected[0], expected[1], atol=1e-2)
    with (
        GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as delegate,
        Interpreter(model_content=content) as plain,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as delegated,
    ):
        hosted = litert.Interpreter(model_content=content, experimental_delegates=[delegate])
        for interpreter in (plain, delegated, hosted):
            np.testing.assert_allclose(runs(interpreter), expected, atol=1e-5)
        assert [report.delegated_nodes for report in delegate.reports] == [2]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (made_once(0.5), "of a constant that is not zeros"),
        (made_once(0, twice=True), "others read it too"),
    ],
)
def test_a_state_that_begins_otherwise_is_refused(content: bytes, match: str, litert: Any) -> None:
    with (
        Interpreter(model_content=content) as interpreter,
        pytest.raises(UnsupportedError, match=match),
    ):
        interpreter.allocate_tensors()
    with GpuDelegate(backend="cpu_ref", device=1) as delegate:
        hosted = litert.Interpreter(model_content=content, experimental_delegates=[delegate])
        hosted.allocate_tensors()
        assert match in str(delegate.reports[0])


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_types_without_arrays_at_the_edge(name: str, allocate: Callable[[ModelSpec], None]) -> None:
    with pytest.raises(UnsupportedError, match=rf"tensor 2 \('z'\) is {name.split(maxsplit=1)[0]}"):
        allocate(NO_ARRAYS[name])


@pytest.mark.parametrize(
    "spec",
    [
        lstm(),
        lstm(inputs=(OUTPUT_STATE,)),
        lstm(outputs=(OUTPUT_STATE, CELL_STATE)),
        lstm("LSTM"),
        ModelSpec(
            [TensorSpec("x", (2, 3)), state("v"), TensorSpec("y", (2, 3))],
            [OperatorSpec("RELU", {}, (0,), (2,))],
            (0,),
            (2, 1),
        ),
        ModelSpec(
            [state("v"), TensorSpec("y", (2,), DType.I32)],
            [OperatorSpec("SHAPE", {"out_type": 2}, (0,), (1,))],
            (),
            (1,),
        ),
    ],
    ids=["lstm", "state is input", "states are outputs", "basic", "unused", "shape of it"],
)
def test_variables_that_work_give_what_litert_gives(spec: ModelSpec, litert: Any) -> None:

    def run(make: Callable[..., Any]) -> list[Array]:
        interpreter = make(model_content=write_model(spec))
        interpreter.allocate_tensors()
        found: list[Array] = []
        for turn in range(3):
            for d in interpreter.get_input_details():
                if turn == 0 or "18" not in d["name"]:
                    values = np.linspace(-1, 1, int(np.prod(d["shape"])), dtype=np.float32)
                    interpreter.set_tensor(d["index"], values.reshape(d["shape"]))
            interpreter.invoke()
            found += [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
        return found

    for got, want in zip(run(Interpreter), run(litert.Interpreter), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def begun(*, read: bool = False, shown: bool = False) -> ModelSpec:
    """An LSTM whose states operators make anew in each run, as a decoder's: by RELU of what comes.
    One is perhaps ``read`` afterwards, or a result of the model."""
    spec = lstm()
    tensors, (operator,), inputs = list(spec.tensors), spec.operators, list(spec.inputs)
    makers = []
    for index in (OUTPUT_STATE, CELL_STATE):
        state = tensors[operator.inputs[index]]
        inputs.append(len(tensors))
        makers.append(OperatorSpec("RELU", {}, (len(tensors),), (operator.inputs[index],)))
        tensors.append(TensorSpec(f"begin {index}", state.shape))
    after, outputs = [], list(spec.outputs)
    if read:
        after = [OperatorSpec("NEG", {}, (operator.inputs[CELL_STATE],), (len(tensors),))]
        outputs.append(len(tensors))
        tensors.append(TensorSpec("negative", tensors[operator.inputs[CELL_STATE]].shape))
    if shown:
        outputs.append(operator.inputs[OUTPUT_STATE])
    return ModelSpec(tensors, [*makers, operator, *after], inputs, outputs)


@pytest.mark.parametrize("backend", ["", "cpu_ref", "opencl"])
def test_states_that_operators_make_anew(backend: str, litert: Any) -> None:
    content = write_model(begun())

    def run(interpreter: Any) -> list[Array]:
        interpreter.allocate_tensors()
        rng, found = np.random.default_rng(0), []
        for _ in range(3):
            for d in sorted(interpreter.get_input_details(), key=lambda d: d["index"]):
                x = rng.normal(size=d["shape"]).astype(np.float32)
                interpreter.set_tensor(d["index"], x)
            interpreter.invoke()
            made = interpreter.get_output_details()
            found.append(np.array(interpreter.get_tensor(made[0]["index"])))
        return found

    wanted = run(litert.Interpreter(model_content=content))
    if not backend:
        for side in ("litert", "cpu_ref"):
            with Interpreter(
                model_content=content, experimental_delegates=[], cpu_backend=side
            ) as ours:
                np.testing.assert_allclose(run(ours), wanted, rtol=1e-5, atol=1e-6)
        return
    device = int(backend == "cpu_ref")  # its kernels
    for left in ((), ("RELU",), (SEQUENCE,)):
        with (
            GpuDelegate(backend=backend, device=device, exclude=left) as delegate,
            Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
        ):
            np.testing.assert_allclose(run(ours), wanted, rtol=1e-5, atol=1e-6)
            assert ours.report.delegated_nodes == (3 - 2 * ("RELU" in left)
                                                                - (SEQUENCE in left))  # fmt: skip


@pytest.mark.parametrize("how", ["read", "shown"])
def test_what_begins_a_state_is_gone_after_it(
    how: str, allocate: Callable[[ModelSpec], None]
) -> None:
    """LiteRT's kernels write into it, so that whoever reads it later gets the last state."""
    with pytest.raises(UnsupportedError, match="whose state it is"):
        allocate(begun(read=how == "read", shown=how == "shown"))


def test_in_litert_it_is_no_output_of_the_model(litert: Any) -> None:
    content = write_model(begun(read=True))
    with GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate:
        litert.Interpreter(model_content=content, experimental_delegates=[delegate])
        (report,) = delegate.reports
        reasons = [refusal.reason for refusal in report.refusals]
    assert any("a result that others read and is made twice: by operator" in r for r in reasons)
    assert not any("output of the model" in r for r in reasons)


def shared_state() -> bytes:
    """Two RNNs in turn with one hidden state, which is a result too (tensor 3)."""
    rng = np.random.default_rng(3)
    w, r = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    return small_model(
        {
            "x": (1, 4),
            "w": tensor_of((4, 4), data=w),
            "r": tensor_of((4, 4), data=r),
            "h": tensor_of((1, 4), is_variable=True),
            "b": tensor_of((4,), data=w[0]),
            "y": (1, 4),
            "z": (1, 4),
            "a": (1, 4),
        },
        ("y = RNN(x, w, r, b, h)", {"fused_activation_function": 4}),
        "a = ABS(y)",
        ("z = RNN(a, w, r, b, h)", {"fused_activation_function": 4}),
        outputs="y z h",
    )


@pytest.mark.parametrize("device", [0, 1])
def test_each_operator_with_a_state_sees_what_the_one_before_made_of_it(
    device: int, litert: Any
) -> None:
    """What a device makes of a state counts when the run is over, which would be too late."""
    content = shared_state()

    def runs(interpreter: Any) -> Array:
        interpreter.allocate_tensors()
        found = []
        for n in range(4):
            set_and_run(interpreter, {0: np.float32([[n, 1, -n, 0.5]]) / 2})
            found.append([np.array(interpreter.get_tensor(i)) for i in (5, 6, 3)])
        return np.array(found)

    wanted = runs(litert.Interpreter(model_content=content))
    for left in ((), (0,), (2,)):
        with (
            GpuDelegate(backend="cpu_ref", device=device, exclude=left) as delegate,
            Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
        ):
            np.testing.assert_allclose(runs(ours), wanted, rtol=1e-5, atol=1e-6)
            assert ours.report.delegated_nodes == 1
            reasons = [r.reason for r in ours.report.refusals if r.node not in left]
            assert all("that of several operators" in reason for reason in reasons)


@pytest.mark.parametrize("device", [0, 1])
def test_state_that_is_a_result_cannot_be_bound(device: int) -> None:
    """A run replaces it when it is over: what is bound would get what was there before."""
    with (
        GpuDelegate(backend="cpu_ref", device=device) as delegate,
        Interpreter(model_content=shared_state(), experimental_delegates=[delegate]) as ours,
    ):
        ours.allocate_tensors()
        with pytest.raises(UnsupportedError, match=r"'h'.* is state, which each run leaves"):
            ours.bind_output(3, np.zeros((1, 4), np.float32))
        ours.bind_output(6, np.zeros((1, 4), np.float32))


def test_a_reference_that_gives_too_few_arrays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin's stateful operator need not say what its states are; its reference is counted."""
    from tflgpu.ops.base import Variables
    from tflgpu.plugins.registry import registry
    from tflgpu.tflite import build as building

    ops = dict(registry().ops())
    ops[SEQUENCE] = attrs.evolve(ops[SEQUENCE], state=Variables())
    build = building.build_graph
    monkeypatch.setattr(building, "build_graph", lambda m, i, _, *rest: build(m, i, ops, *rest))
    interpreter = Interpreter(model_content=write_model(lstm(variables=(2,))))
    interpreter.allocate_tensors()
    with pytest.raises(TflgpuError, match=r"gave 3 arrays, not 4: results, and then state"):
        interpreter.invoke()
