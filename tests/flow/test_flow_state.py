"""State that outlives a run: what resets it, what does not, who shares it, what a failed run
leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu import (
    AllocationError,
    DeviceError,
    GpuDelegate,
    Interpreter,
    StateError,
    UnsupportedError,
)
from tflgpu.flow.store import VariableStore
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.reference import ReferenceRecording
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.flow.flow_models import (
    BOOL,
    I32,
    RESOURCE,
    accumulator,
    branch,
    const,
    counting,
    initializer,
    loop,
    model,
    number,
    subgraph,
    tensor,
    up_to,
    variable,
)
from tests.running import allocated, results, set_and_run

X = np.array([1, 2], np.float32)
ONCE = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})
ADDING = model(accumulator(ONCE), initializer([10, 20]))

#: Adds to a variable and assigns it, doubles it in a loop, and takes it off again.
TWO_STEPS = model(
    subgraph(
        [
            tensor("x"), tensor("h", (), RESOURCE), tensor("old"), tensor("new"), number("i", 0),
            tensor("io", (), I32), tensor("xo"), tensor("back"),
        ],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""),
            ("WHILE", "i new", "io xo", loop(2, 3)), ("SUB", "xo new", "back"),
        ],
        "x", "back",
    ),
    initializer([10, 20]), up_to(1), counting([tensor("y")], [("ADD", "x x", "y")], "y"),
)  # fmt: skip


def call(interpreter: Any, x: Array = X) -> list[float]:
    return results(interpreter, {interpreter.get_input_details()[0]["index"]: x})[0].tolist()


def test_it_stays_over_allocation_and_resize_as_in_litert(
    delegates: list[GpuDelegate], litert: Any
) -> None:
    found = []
    for interpreter in (
        Interpreter(model_content=ADDING, experimental_delegates=delegates),
        litert.Interpreter(model_content=ADDING),
    ):
        interpreter.allocate_tensors()
        told = [call(interpreter), call(interpreter)]
        interpreter.allocate_tensors()
        told.append(call(interpreter))
        interpreter.resize_tensor_input(0, (1, 2))
        interpreter.resize_tensor_input(0, (2,))
        interpreter.allocate_tensors()
        told.append(call(interpreter))
        found.append(told)
    assert found[0] == found[1] == [[11, 22], [12, 24], [13, 26], [14, 28]]


def test_a_reset_brings_back_what_a_model_begins_with(by_numpy: list[GpuDelegate]) -> None:
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy)
    ) as interpreter:
        assert [call(interpreter), call(interpreter)] == [[11, 22], [12, 24]]
        interpreter.reset_all_variables()
        assert [call(interpreter), call(interpreter)] == [[11, 22], [12, 24]]


def test_interpreters_have_a_state_each(by_numpy: list[GpuDelegate]) -> None:
    one, other = (
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy) for _ in range(2)
    )
    for interpreter in (one, other):
        interpreter.allocate_tensors()
    assert [call(one), call(one), call(other)] == [[11, 22], [12, 24], [11, 22]]


def test_what_a_variable_held_is_copied_only_where_it_is_an_output(
    by_numpy: list[GpuDelegate],
) -> None:
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy)
    ) as interpreter:
        call(interpreter)
        session = interpreter._main.session
        assert session is not None
        assert not session.arrays[2].flags.writeable  # the variable's own, which nothing writes to
        assert interpreter.tensor(3)().flags.writeable


def test_an_output_stays_when_the_variable_changes(by_numpy: list[GpuDelegate]) -> None:
    """A view of an output that is what a variable held is no way to write into that."""
    whole = subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), tensor("old")],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ASSIGN_VARIABLE", "h x", ""),
        ],
        "x", "old",
    )  # fmt: skip
    content = model(whole, initializer([10, 20]))
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy)
    ) as interpreter:
        assert call(interpreter) == [10, 20]
        interpreter.tensor(2)()[...] = 99
        assert call(interpreter) == [1, 2]
        interpreter.tensor(2)()[...] = 99
        assert call(interpreter) == [1, 2]


def test_a_variable_has_the_shape_that_it_was_last_given(by_numpy: list[GpuDelegate]) -> None:
    """Whatever the file says. (LiteRT reads as many elements as the file says.)"""
    grown = subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), tensor("old"), tensor("new", (4,))],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("CONCATENATION", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "x", "new",
    )  # fmt: skip
    content = model(grown, initializer([10, 20]))
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy)
    ) as interpreter:
        assert call(interpreter) == [10, 20, 1, 2]
        assert call(interpreter) == [10, 20, 1, 2, 1, 2]
        assert list(interpreter.get_output_details()[0]["shape"]) == [6]


def signed() -> bytes:
    """Signatures "add" and "get", of one variable."""
    handle = tensor("h", (), RESOURCE)
    get = subgraph(
        [handle, tensor("y")],
        [("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "y")], "", "y",
    )  # fmt: skip
    signatures = [
        SignatureInfo("add", 0, {"x": 0}, {"y": 3}),
        SignatureInfo("get", 2, {}, {"y": 1}),
    ]
    return model(accumulator(ONCE), initializer([10, 20]), get, signatures=signatures)


def test_signatures_share_variables(delegates: list[GpuDelegate]) -> None:
    with Interpreter(model_content=signed(), experimental_delegates=delegates) as interpreter:
        add, get = (interpreter.get_signature_runner(key) for key in ("add", "get"))
        with pytest.raises(StateError, match="variable 'v' is read before anything was assigned"):
            get()
        assert add(x=X)["y"].tolist() == [11, 22]
        assert get()["y"].tolist() == [11, 22]
        assert add(x=X)["y"].tolist() == [12, 24]
        assert get()["y"].tolist() == [12, 24]


def test_a_run_that_fails_changes_nothing(by_numpy: list[GpuDelegate]) -> None:
    """It had assigned already when the shapes turned out not to work."""
    shape = tensor("n", (1,), I32)
    whole = subgraph(
        [
            tensor("x"), shape, tensor("h", (), RESOURCE), tensor("old"), tensor("new"),
            tensor("y"),
        ],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""), ("RESHAPE", "new n", "y"),
        ],
        "x n", "y",
    )  # fmt: skip
    content = model(whole, initializer([10, 20]))
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy)
    ) as interpreter:
        interpreter.set_tensor(1, np.array([2], np.int32))
        assert call(interpreter) == [11, 22]
        interpreter.set_tensor(1, np.array([3], np.int32))
        with pytest.raises(AllocationError, match="RESHAPE"):
            call(interpreter)
        with pytest.raises(StateError, match="no results"):
            interpreter.get_tensor(5)
        interpreter.set_tensor(1, np.array([2], np.int32))
        assert call(interpreter) == [12, 24]


def test_what_only_a_run_tells_is_not_there_before_it(by_numpy: list[GpuDelegate]) -> None:
    twice = subgraph([tensor("x"), tensor("y", (4,))], [("CONCATENATION", "x x", "y")], "x", "y")
    same = subgraph([tensor("x")], [], "x", "x")
    chosen = subgraph(
        [tensor("c", (), BOOL), tensor("x"), tensor("y")], [("IF", "c x", "y", branch(1, 2))],
        "c x", "y",
    )  # fmt: skip
    content = model(chosen, twice, same)
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy)
    ) as interpreter:
        assert list(interpreter.get_output_details()[0]["shape"]) == [2]  # as the file has it
        with pytest.raises(ValueError, match="before invoke"):
            interpreter.get_tensor(2)
        set_and_run(interpreter, {0: np.array(True), 1: X})
        assert list(interpreter.get_output_details()[0]["shape"]) == [4]
        assert interpreter.get_tensor(2).tolist() == [1, 2, 1, 2]


def test_state_tensors_of_operators_stay_over_other_shapes(by_numpy: list[GpuDelegate]) -> None:
    """An SVDF behind what only a run shapes: its state goes on, whichever compiled piece runs
    it."""
    pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    rng = np.random.default_rng(0)
    weights = [const("w", rng.standard_normal((4, 3))), const("t", rng.standard_normal((4, 2)))]
    state = TensorSpec("s", (2, 8), is_variable=True)
    whole = subgraph(
        [
            tensor("x", (6,)), tensor("n", (2,), I32), number("minus", -1), tensor("m", (2, 3)),
            *weights, state, tensor("y", (2, 4)),
        ],
        [("RESHAPE", "x n", "m")], "x n", "m",
    )  # fmt: skip
    names = [t.name for t in whole.tensors]
    svdf = OperatorSpec(
        "SVDF", {"rank": 1},
        [names.index("m"), names.index("w"), names.index("t"), -1, names.index("s")],
        [names.index("y")],
    )  # fmt: skip
    content = write_model(
        ModelSpec(whole.tensors, [*whole.operators, svdf], whole.inputs, [names.index("y")])
    )
    plain = write_model(ModelSpec(whole.tensors, [svdf], [names.index("m")], [names.index("y")]))
    xs = [rng.standard_normal(6).astype(np.float32) for _ in range(3)]
    with allocated(
        Interpreter(model_content=plain, experimental_delegates=by_numpy, cpu_backend="litert")
    ) as interpreter:
        wanted = [call(interpreter, x.reshape(2, 3)) for x in xs]
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy, cpu_backend="litert")
    ) as interpreter:
        interpreter.set_tensor(1, np.array([2, 3], np.int32))
        found = [call(interpreter, xs[0])]
        interpreter.set_tensor(1, np.array([-1, 3], np.int32))  # the same, compiled anew
        found += [call(interpreter, xs[1])]
        interpreter.set_tensor(1, np.array([2, 3], np.int32))
        found += [call(interpreter, xs[2])]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        interpreter.reset_all_variables()
        np.testing.assert_allclose(call(interpreter, xs[0]), wanted[0], rtol=1e-6)


def test_nothing_is_bound(by_numpy: list[GpuDelegate]) -> None:
    """What is between the pieces has no place of the caller's; that is said."""
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy)
    ) as interpreter:
        for bind, index in ((interpreter.bind_input, 0), (interpreter.bind_output, 3)):
            with pytest.raises(UnsupportedError, match="cannot be bound"):
                bind(index, np.zeros(2, np.float32))
        assert call(interpreter) == [11, 22]


def test_what_an_interrupt_ends_changes_nothing(
    by_numpy: list[GpuDelegate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither variables nor which subgraphs were called."""
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy)
    ) as interpreter:
        assign = VariableStore.assign

        def interrupted(self: VariableStore, *args: Any) -> None:
            assign(self, *args)
            raise KeyboardInterrupt

        for _ in range(2):
            monkeypatch.setattr(VariableStore, "assign", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(interpreter)
            monkeypatch.setattr(VariableStore, "assign", assign)
            with pytest.raises(StateError):
                interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        assert call(interpreter) == [11, 22]
        monkeypatch.setattr(VariableStore, "assign", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(interpreter)
        monkeypatch.setattr(VariableStore, "assign", assign)
        assert call(interpreter) == [12, 24]


@pytest.mark.parametrize("policy", ["raise", "retry", "cpu"])
@pytest.mark.needs("cpu_ref")
def test_a_device_that_fails_in_a_run(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the variable was assigned: nothing is added twice, or lost."""
    compute = ReferenceRecording._compute
    faults = [False, False]

    def failing(self: ReferenceRecording) -> None:
        compute(self)
        if faults.pop(0) if faults else False:
            raise DeviceError("planted")

    with (
        GpuDelegate(backend="cpu_ref", on_error=policy) as delegate,
        allocated(
            Interpreter(model_content=TWO_STEPS, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        monkeypatch.setattr(ReferenceRecording, "_compute", failing)
        assert call(interpreter) == [11, 22]
        faults[:] = [False, True]  # after the first assignment
        if policy == "raise":
            with pytest.raises(DeviceError, match="planted"):
                call(interpreter)
        assert call(interpreter) == [12, 24]
        assert call(interpreter) == [13, 26]


@pytest.mark.parametrize("backend", ["none", "cpu_ref", "cpu_ref:1"])
def test_runs_in_flight_follow_each_other(backend: str) -> None:
    """In the order of the calls, and so do those of `invoke` and what reads or resets the state."""
    name, _, device = backend.partition(":")
    delegates = [] if name == "none" else [GpuDelegate(backend=name, device=int(device or 0))]
    feeds = [X * n for n in range(1, 7)]
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=delegates, max_in_flight=3)
    ) as interpreter:
        source, result = (
            d["index"]
            for d in (*interpreter.get_input_details(), *interpreter.get_output_details()[:1])
        )

        def alone(feed: Array) -> list[float]:
            set_and_run(interpreter, {source: feed})
            return interpreter.get_tensor(result).tolist()

        wanted = [alone(feed) for feed in feeds]
        assert wanted[0] != wanted[1]
        interpreter.reset_all_variables()
        runs = [interpreter.invoke_async({source: feed}) for feed in feeds[:3]]
        found = [alone(feeds[3])]  # on the device where the interpreter's own run keeps it
        runs += [interpreter.invoke_async({source: feed}) for feed in feeds[4:]]
        found = [r.get_tensor(result).tolist() for r in runs[:3]] + found
        found += [r.get_tensor(result).tolist() for r in runs[3:]]
        assert found == wanted
        last = interpreter.invoke_async({source: feeds[0]})
        interpreter.reset_all_variables()
        assert last.done()
        assert alone(feeds[0]) == wanted[0]


def test_its_tensors_cannot_be_bound(by_numpy: list[GpuDelegate]) -> None:
    with allocated(
        Interpreter(model_content=ADDING, experimental_delegates=by_numpy)
    ) as interpreter:
        (source,) = interpreter.get_input_details()
        with pytest.raises(UnsupportedError, match="control flow, resource variables"):
            interpreter.bind_input(0, X.copy())
        set_and_run(interpreter, {source["index"]: X})
