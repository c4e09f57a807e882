"""Inputs of a recording may lie in memory that the host writes at full speed and reads at a
hundredth of it: what reads them on the way of a run is found out here.

They are arrays that raise where NumPy is asked to read them, and what gets around that reads
noise, since a run takes what was written and leaves noise there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
import tflgpu_cpu_ref.device
from tflgpu.interpreter.opened_subgraph import SessionMemory
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_cpu_ref.recording import CpuRefRecording

from tests.running import allocated, set_and_run
from tests.small_models import small_model, tensor_of

#: NaN as a number, beyond what indices are: which recording's it is, and which element of an input.
MARK, MASK = 0x7FD00000, 0xFFF00000
DEVICE = {"backend": "cpu_ref", "device": 1}


#: What NumPy may be asked of an input beside copying to it.
ASKED = (np.may_share_memory, np.shares_memory)


class WriteOnly(np.ndarray[Any, Any]):
    """An array that is written to."""

    reads: list[str] = []  # noqa: RUF012

    def refuse(self, what: str) -> None:
        self.reads.append(what)
        raise AssertionError(f"an input was read, by {what}")

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, WriteOnly):
            self.refuse("[]")
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, WriteOnly):
            self.refuse("[] = itself")
        self.view(np.ndarray)[key] = value

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        read = args[1:] if function is np.copyto else args
        if function not in ASKED and any(isinstance(a, WriteOnly) for a in read):
            self.refuse(function.__name__)
        plain = (a.view(np.ndarray) if isinstance(a, WriteOnly) else a for a in args)
        return function(*plain, **kwargs)

    def __array_ufunc__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.refuse(function.__name__)

    def tobytes(self, *args: Any) -> Any:
        self.refuse("tobytes")

    def copy(self, *args: Any) -> Any:
        self.refuse("copy")


class Unreadable(CpuRefRecording):
    """A recording with such inputs."""

    made: list[Unreadable] = []  # noqa: RUF012

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.made.append(self)
        self._true = self._inputs
        first = MARK | (len(self.made) & 31) << 15
        self._noise = [
            (first | np.arange(a.size, dtype=np.uint32) & 0x7FFF).view(a.dtype).reshape(a.shape)
            for a in self._true
        ]
        self._inputs = tuple(np.array(noise).view(WriteOnly) for noise in self._noise)

    def _run(self) -> None:
        for true, given, noise in zip(self._true, self._inputs, self._noise, strict=True):
            shown = given.view(np.ndarray)
            bits = shown.view(np.uint32)
            is_written = bits != noise.view(np.uint32)
            if (is_written & ((bits & MASK) == MARK)).any():
                WriteOnly.reads.append("something that wrote it to an input")
            true[is_written] = shown[is_written]
            shown[...] = noise
        super()._run()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    Unreadable.made.clear()
    WriteOnly.reads.clear()
    monkeypatch.setattr(tflgpu_cpu_ref.device, "CpuRefRecording", Unreadable)
    view = SessionMemory.view

    def write_only(self: SessionMemory, array: Any) -> Any:
        """A lease of an input is one, too."""
        return view(self, array).view(type(array))

    monkeypatch.setattr(SessionMemory, "view", write_only)
    yield WriteOnly.reads
    assert Unreadable.made
    assert not WriteOnly.reads


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(1, 2, shape).astype(np.float32)


def linear() -> bytes:
    """a + 2 b."""
    return small_model(
        {
            "a": (1, 3),
            "b": (1, 3),
            "two": tensor_of((), data=np.float32(2)),
            "doubled": (1, 3),
            "sum": (1, 3),
        },
        "doubled = MUL(b, two)",
        "sum = ADD(a, doubled)",
    )


def opened(content: bytes, **options: Any) -> tuple[tflgpu.GpuDelegate, tflgpu.Interpreter]:
    delegate = tflgpu.GpuDelegate(**DEVICE, **options)
    interpreter = allocated(
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
    )
    return delegate, interpreter


def test_reads_are_noticed(reads: list[str]) -> None:
    with tflgpu.Model(linear(), batch=4, **DEVICE) as model:
        rows = model._interpreter.tensor(model._inputs[0].index)()
        with pytest.raises(AssertionError, match="read"):
            rows[2:] = rows[1]
        model._interpreter.get_tensor(model._outputs[0].index)
        del rows
        model._interpreter.invoke()
        rows = model._interpreter.tensor(model._inputs[0].index)().view(np.ndarray)
        rows[2:] = rows[1]  # behind NumPy's back: noise
        del rows
        model._interpreter.invoke()
        assert len(reads) == 2
        reads.clear()


@pytest.mark.usefixtures("reads")
def test_set_and_invoke() -> None:
    delegate, interpreter = opened(linear())
    with delegate, interpreter:
        a, b = numbers(1, 3), numbers(1, 3, seed=1)
        interpreter.set_tensor(1, b)
        for _ in range(3):  # the second stays as it was set
            set_and_run(interpreter, {0: a})
            np.testing.assert_allclose(interpreter.get_tensor(4), a + 2 * b, rtol=1e-6)
            a = a + 1


@pytest.mark.usefixtures("reads")
def test_runs_in_flight() -> None:
    delegate, interpreter = opened(linear())
    with delegate, interpreter:
        a, b = numbers(1, 3), numbers(1, 3, seed=1)
        runs = [interpreter.invoke_async({0: a + n, 1: b}) for n in range(5)]
        for n, run in enumerate(runs):
            np.testing.assert_allclose(run.results()[0], a + n + 2 * b, rtol=1e-6)


def test_what_runs_in_flight_are_not_given_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each time that it was set: they have it as it was set last."""
    read, value = [], Subgraph.value

    def spy(self: Subgraph, index: int) -> Any:
        read.append(index)
        return value(self, index)

    monkeypatch.setattr(Subgraph, "value", spy)
    delegate, interpreter = opened(linear())
    with delegate, interpreter:
        a, b = numbers(1, 3), numbers(1, 3, seed=1)
        for last in (b + 1, b + 2):
            interpreter.set_tensor(1, last)
            runs = [interpreter.invoke_async({0: a + n}) for n in range(5)]
            runs.append(interpreter.invoke_async({0: a + 5, 1: b}))
            runs.append(interpreter.invoke_async({0: a + 6}))
            for n, run in enumerate(runs):
                wanted = a + n + 2 * (b if n == 5 else last)
                np.testing.assert_allclose(run.results()[0], wanted, rtol=1e-6)
        assert read == [1, 1]
        interpreter.tensor(1)()[...] = b
        np.testing.assert_allclose(
            interpreter.invoke_async({0: a}).results()[0], a + 2 * b, rtol=1e-6
        )
        theirs = np.array(b + 3)
        interpreter.bind_input(1, theirs)
        for n in range(2):
            theirs[...] = b + n
            found = interpreter.invoke_async({0: a}).results()[0]
            np.testing.assert_allclose(found, a + 2 * (b + n), rtol=1e-6)
        interpreter.unbind(1)
        found = interpreter.invoke_async({0: a}).results()[0]
        np.testing.assert_allclose(found, a + 2 * (b + 1), rtol=1e-6)


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("batch", [1, 4])
def test_a_model(batch: int) -> None:
    with tflgpu.Model(linear(), batch=batch, **DEVICE) as model:
        for count in (1, 3, 6, 1):
            a, b = numbers(count, 3), numbers(count, 3, seed=count)
            np.testing.assert_allclose(model(a, b)[0], a + 2 * b, rtol=1e-6)


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("batch", [1, 4])
def test_a_pool(batch: int) -> None:
    with tflgpu.Pool(linear(), batch=batch, deadline=0, size=1, **DEVICE) as pool:
        given = [(numbers(1, 3, seed=n), numbers(1, 3, seed=n + 50)) for n in range(11)]
        found = [pool.submit(*each) for each in given]
        for (a, b), future in zip(given, found, strict=True):
            np.testing.assert_allclose(future.result(60)[0], a + 2 * b, rtol=1e-6)


@pytest.mark.usefixtures("reads")
def test_an_input_that_the_cpu_reads_too() -> None:
    """Its home is not where it is written for the device."""
    content = small_model(
        dict.fromkeys(("x", "y", "out"), (1, 4)), "y = ADD(x, x)", "out = MUL(y, x)"
    )
    delegate, interpreter = opened(content, exclude=["MUL"])
    with delegate, interpreter:
        assert interpreter.report.delegated_nodes == 1
        for n in range(3):
            x = numbers(1, 4, seed=n)
            set_and_run(interpreter, {0: x})
            np.testing.assert_allclose(interpreter.get_tensor(2), 2 * x * x, rtol=1e-6)


@pytest.mark.usefixtures("reads")
def test_a_loop() -> None:
    """x doubles until it is large, which only a run tells."""
    main = [TensorSpec("x", (1, 3)), TensorSpec("y", (1, 3))]
    scalar, axes = (
        TensorSpec("s", ()),
        TensorSpec("axes", (2,), DType.I32, data=np.array([0, 1], np.int32)),
    )
    cond = SubgraphSpec(
        [main[0], axes, scalar, TensorSpec("limit", (), data=np.float32(99)), TensorSpec("c", (),
        DType.BOOL)],
        [OperatorSpec("SUM", {"keep_dims": False}, [0, 1], [2]), OperatorSpec("LESS", {}, [2, 3],
        [4])],
        [0], [4], "cond",
    )  # fmt: skip
    body = SubgraphSpec(main, [OperatorSpec("ADD", {}, [0, 0], [1])], [0], [1], "body")
    loop = OperatorSpec("WHILE", {"cond_subgraph_index": 1, "body_subgraph_index": 2}, [0], [1])
    content = write_model(ModelSpec(main, [loop], [0], [1], subgraphs=[cond, body]))
    delegate, interpreter = opened(content)
    with delegate, interpreter:
        for n in range(3):
            x = wanted = numbers(1, 3, seed=n)
            while wanted.sum() < 99:
                wanted = wanted * 2
            set_and_run(interpreter, {0: x})
            np.testing.assert_allclose(interpreter.get_tensor(1), wanted, rtol=1e-6)
