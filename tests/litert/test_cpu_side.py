"""What a device refuses is run by LiteRT's kernels, and by NumPy where that is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
import tflgpu_litert.native
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu.devices import cpu_side
from tflgpu.errors import DeviceError, OptionError
from tflgpu.interpreter import OpResolverType
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.registry import Registry, registry
from tflgpu.plugins.sources import Plugin
from tflgpu.runtime import cpu_session
from tflgpu.runtime.reference import ReferenceRecording
from tflgpu.tflite.spec import TensorSpec
from tflgpu_litert.recording import LiteRTRecording

from tests.litert.litert_models import (
    LITERT,
    between,
    i64_in_the_middle,
    litert,
    numbers,
    one,
    quantized_add,
    run,
)
from tests.running import set_and_run
from tests.small_models import small_model, tensor_of

X = numbers((1, 5, 7), 3, -9, 9)


def steps(interpreter: tflgpu.Interpreter) -> list[Any]:
    return list(interpreter._main._memory.session.parts)


def allocated(model: bytes, **arguments: Any) -> tflgpu.Interpreter:
    interpreter = tflgpu.Interpreter(model_content=model, **arguments)
    interpreter.allocate_tensors()
    return interpreter


def test_refused_operators_run_by_litert(delegate: tflgpu.GpuDelegate) -> None:
    model = i64_in_the_middle()
    outputs, report = run(model, [X], delegate)
    np.testing.assert_allclose(outputs[0], litert(model, [X])[0], rtol=1e-6, atol=1e-6)
    assert (report.delegated_nodes, report.total_nodes, report.partitions) == (2, 5, 2)
    assert [r.op for r in report.refusals] == ["CAST", "ADD", "CAST"]
    assert all(r.runs_on.startswith(LITERT) for r in report.refusals)
    assert f"run by {LITERT}" in str(report)


def test_one_call_into_litert_for_each_part(delegate: tflgpu.GpuDelegate) -> None:
    with allocated(i64_in_the_middle(), experimental_delegates=[delegate]) as interpreter:
        found = steps(interpreter)
        assert [s.on_cpu for s in found] == [False, True, False]
        assert isinstance(found[1].recording, LiteRTRecording)


def test_both_cpu_sides_give_the_same(delegate: tflgpu.GpuDelegate) -> None:
    model = i64_in_the_middle()
    (native,), _ = run(model, [X], delegate)
    (numpy,), report = run(model, [X], delegate, cpu_backend="cpu_ref")
    np.testing.assert_allclose(native, numpy, rtol=1e-6, atol=1e-6)
    assert {r.runs_on for r in report.refusals} == {""}


def test_without_a_delegate_everything_is_litert() -> None:
    model = i64_in_the_middle()
    outputs, report = run(model, [X])
    np.testing.assert_array_equal(outputs[0], litert(model, [X])[0])
    assert {r.runs_on[: len(LITERT)] for r in report.refusals} == {LITERT}
    assert f"5 of 5 operators run on the CPU by {LITERT}" in report.summary


@pytest.mark.parametrize("resolver", ["AUTO", "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def test_quantized_models_run_in_the_numbers_of_the_file(resolver: str) -> None:
    model = quantized_add()
    x = np.random.default_rng(0).integers(-128, 128, (1, 3, 5)).astype(np.int8)
    outputs, _ = run(model, [x], experimental_op_resolver_type=OpResolverType[resolver])
    np.testing.assert_array_equal(outputs[0], litert(model, [x], resolver)[0])


def test_an_operator_for_numpy_leaves_the_others_in_the_numbers_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # LiteRT's kernels take no tensor without elements, so that the model is three parts. Rows that
    # meet 8-bit weights are rounded by LiteRT in them, as in the whole model.
    weights = tensor_of(
        (4, 8), DType.I8, np.arange(-16, 16, dtype=np.int8).reshape(4, 8),
        Quantization((0.01,) * 4, (0,) * 4),
    )  # fmt: skip
    content = small_model(
        {"x": (1, 8), "w": weights, "nothing": (0, 2), "to": np.array([2, 0], np.int32),
         "y": (1, 4), "none": (2, 0), "z": (1, 4)},
        ("y = FULLY_CONNECTED(x, w, -)", {}), "none = RESHAPE(nothing, to)", "z = NEG(y)",
        inputs="x nothing", outputs="z none",
    )  # fmt: skip
    x = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    monkeypatch.delattr(cpu_session, "float_view")  # nothing asks for one
    with allocated(content) as interpreter:
        set_and_run(interpreter, {0: x})
        found = [type(step.recording) for step in steps(interpreter)]
        assert {LiteRTRecording, ReferenceRecording} == set(found)
        z = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    reference = LiteRT(model_content=content)
    reference.allocate_tensors()
    reference.set_tensor(reference.get_input_details()[0]["index"], x)
    reference.invoke()
    np.testing.assert_array_equal(
        z, reference.get_tensor(reference.get_output_details()[0]["index"])
    )


def test_intermediate_tensors_are_kept() -> None:
    model = i64_in_the_middle()
    with allocated(model, experimental_preserve_all_tensors=True) as interpreter:
        set_and_run(interpreter, {0: X})
        assert isinstance(steps(interpreter)[0].recording, LiteRTRecording)
        wide = np.trunc(np.maximum(X, 0)).astype(np.int64)
        np.testing.assert_array_equal(interpreter.get_tensor(2), wide)
        np.testing.assert_array_equal(interpreter.get_tensor(3), wide + 3)


def test_what_litert_lacks_is_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A custom op that only a plugin here defines, between two operators that LiteRT takes."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "custom_op")
    module = importlib.import_module("tflgpu_softsign.plugin")
    installed = (*registry().plugins, Plugin("softsign", "softsign", module))
    monkeypatch.setattr(plugins, "_registry", Registry(installed))
    x = numbers((2, 3, 5), 5)
    outputs, report = run(between("Softsign", made=TensorSpec("made", (2, 3, 5))), [x])
    positive = np.maximum(x, 0)
    np.testing.assert_allclose(outputs[0], -positive / (1 + positive), rtol=1e-6)
    assert [bool(r.runs_on) for r in report.refusals] == [True, False, True]


class TestOptions:
    def test_it_can_be_chosen_by_the_delegate(self) -> None:
        with tflgpu.GpuDelegate(backend="cpu_ref", device=1, cpu_backend="cpu_ref") as delegate:
            _, report = run(i64_in_the_middle(), [X], delegate)
            assert {r.runs_on for r in report.refusals} == {""}
            _, report = run(i64_in_the_middle(), [X], delegate, cpu_backend="litert")
            assert all(r.runs_on for r in report.refusals)

    def test_it_can_be_chosen_by_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TFLGPU_CPU_BACKEND", "cpu_ref")
        assert "LiteRT" not in run(i64_in_the_middle(), [X])[1].summary
        assert "LiteRT" in run(i64_in_the_middle(), [X], cpu_backend="litert")[1].summary

    def test_what_is_no_cpu_side_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(OptionError, match="cpu_backend is one of litert, cpu_ref, not 'op"):
            run(i64_in_the_middle(), [X], cpu_backend="opencl")
        with pytest.raises(OptionError, match="cpu_backend is a name"):
            tflgpu.DelegateOptions(cpu_backend=3)
        with pytest.raises(OptionError, match="num_threads is 0; the least is 1"):
            tflgpu.DelegateOptions(num_threads=0)
        with pytest.raises(OptionError, match="op_resolver is one of AUTO"):
            tflgpu.DelegateOptions(op_resolver="fast")
        monkeypatch.setenv("TFLGPU_CPU_BACKEND", "litret")
        with pytest.raises(OptionError, match="TFLGPU_CPU_BACKEND is one of litert, cpu_ref"):
            tflgpu.GpuDelegate(backend="cpu_ref", device=1)

    @pytest.mark.parametrize("by_delegate", [True, False])
    def test_threads_and_resolver_reach_litert(
        self, by_delegate: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int | None, str]] = []
        real = tflgpu_litert.native.Interpreter

        def spy(**given: Any) -> Any:
            seen.append((given["num_threads"], given["experimental_op_resolver_type"].name))
            return real(**given)

        monkeypatch.setattr(tflgpu_litert.native, "Interpreter", spy)
        if by_delegate:
            options = {"num_threads": 3, "op_resolver": "builtin_ref"}
            with tflgpu.GpuDelegate(backend="cpu_ref", device=1, **options) as delegate:
                _, report = run(i64_in_the_middle(), [X], delegate)
        else:
            resolver = OpResolverType.BUILTIN_REF
            _, report = run(
                i64_in_the_middle(), [X], num_threads=3, experimental_op_resolver_type=resolver
            )
        assert set(seen) == {(3, "BUILTIN_REF")}
        assert "num_threads=3" in report.refusals[0].runs_on

    def test_the_interpreters_say_goes_before_the_delegates(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Any] = []
        real = tflgpu_litert.native.Interpreter
        monkeypatch.setattr(
            tflgpu_litert.native, "Interpreter",
            lambda **given: seen.append(given["num_threads"]) or real(**given),
        )  # fmt: skip
        with tflgpu.GpuDelegate(backend="cpu_ref", device=1, num_threads=3) as delegate:
            run(i64_in_the_middle(), [X], delegate, num_threads=2)
        assert set(seen) == {2}


class TestNotInstalled:
    @pytest.fixture(autouse=True)
    def without_litert(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec",
            lambda name, *rest: None if name == "ai_edge_litert" else real(name, *rest),
        )  # fmt: skip
        monkeypatch.setattr(cpu_side, "_warned", False)
        monkeypatch.setitem(
            registry()._probes, "litert", registry()._probe(registry().backends["litert"])
        )

    def test_numpy_runs_it_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        model = i64_in_the_middle()
        with caplog.at_level(logging.WARNING, "tflgpu"):
            for _ in range(3):
                outputs, report = run(model, [X])
        np.testing.assert_allclose(outputs[0], litert(model, [X])[0], rtol=1e-6)
        assert {r.runs_on for r in report.refusals} == {""}
        (said,) = [r.getMessage() for r in caplog.records]
        assert "NumPy" in said
        assert 'pip install "tflgpu[litert]"' in said

    def test_who_asks_for_numpy_is_not_warned(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "tflgpu"):
            run(i64_in_the_middle(), [X], cpu_backend="cpu_ref")
        assert not caplog.records

    def test_who_asks_for_litert_is_told_what_to_install(self) -> None:
        with pytest.raises(DeviceError, match=r'run: pip install "tflgpu\[litert\]"'):
            run(i64_in_the_middle(), [X], cpu_backend="litert")


def test_state_is_the_sessions(model_path: Any) -> None:
    """An LSTM whose state LiteRT's kernel changes: it goes on from run to run, can be read and
    reset, and is what LiteRT's own interpreter has."""
    path = model_path("tflm_mnist_lstm_fp32")
    with tflgpu.Interpreter(str(path)) as interpreter:
        interpreter.allocate_tensors()
        native = LiteRT(str(path))
        native.allocate_tensors()
        variables = interpreter._main._memory.session.variables
        assert len(variables) == 2

        def both(seed: int) -> None:
            for model in (interpreter, native):
                detail = model.get_input_details()[0]
                set_and_run(model, {detail["index"]: numbers(detail["shape"], seed)})
            for index in (*variables, interpreter.get_output_details()[0]["index"]):
                ours, theirs = interpreter.get_tensor(index), native.get_tensor(index)
                assert np.any(ours)
                np.testing.assert_array_equal(ours, theirs)

        both(0)
        both(1)
        interpreter.reset_all_variables()
        native.reset_all_variables()
        assert not any(np.any(interpreter.get_tensor(index)) for index in variables)
        both(2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_runs_what_its_parent_allocated() -> None:
    x = X
    with allocated(i64_in_the_middle(), num_threads=2) as interpreter:
        set_and_run(interpreter, {0: x})
        expected = interpreter.get_tensor(6)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def child() -> None:
            set_and_run(interpreter, {0: x})
            queue.put(interpreter.get_tensor(6))

        process = context.Process(target=child)
        process.start()
        try:
            np.testing.assert_array_equal(queue.get(timeout=60), expected)
        finally:
            process.join(30)
            assert process.exitcode == 0
        interpreter.invoke()  # and the parent goes on


def test_a_failure_names_the_operator() -> None:
    """GATHER beyond its end, which only a run shows."""
    tensors = [
        TensorSpec("x", (3, 2), DType.I64), TensorSpec("i", (2,), DType.I32),
        TensorSpec("y", (2, 2), DType.I64),
    ]  # fmt: skip
    model = one("GATHER", {"axis": 0}, tensors, [0, 1])
    x = np.arange(6).reshape(3, 2)
    with pytest.raises(DeviceError, match=r"#0 GATHER: gather index out of bounds"):
        run(model, [x, np.array([1, 9], np.int32)])
    outputs, _ = run(model, [x, np.array([2, 0], np.int32)])
    np.testing.assert_array_equal(outputs[0], x[[2, 0]])


def test_litert_as_the_device_itself() -> None:
    with tflgpu.GpuDelegate(backend="litert") as delegate:
        outputs, report = run(i64_in_the_middle(), [X], delegate)
        assert report.fully_delegated
        assert report.backend == "litert"
    np.testing.assert_array_equal(outputs[0], litert(i64_in_the_middle(), [X])[0])
