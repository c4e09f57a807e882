"""A delegate for an interpreter that was made without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import OptionError, StateError, UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.interpreter import interpreter_models as models
from tests.interpreter.cache_models import language_model
from tests.interpreter.test_caches import TOKENS, step
from tests.running import allocate_and_run, allocated, set_and_run

X = np.array([[1.0, -2.0, 0.5], [0, 3, 7]], np.float32)
Y = (X + models.C) * models.C


def chain(**options: Any) -> tflgpu.Interpreter:
    return tflgpu.Interpreter(model_content=models.chain(), **options)


@pytest.mark.parametrize("is_default", [False, True])
def test_inputs_and_shapes_stay(
    delegate: Any, is_default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_default:
        monkeypatch.delenv("TFLGPU_DEFAULT_DELEGATE")
        monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
        monkeypatch.setenv("TFLGPU_DEVICE", "0")
    with chain(experimental_delegates=None if is_default else []) as one:
        one.resize_tensor_input(0, X.shape)
        allocate_and_run(one, {0: X})
        assert one.report.dispatches == 0
        one.modify_graph_with_delegate(delegate)
        assert one.report.device == delegate.device.info.name
        with pytest.raises(StateError, match=r"invoke\(\)"):
            one.get_tensor(3)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        assert one.report.fully_delegated
        assert one.report.dispatches > 0


def test_before_tensors_are_allocated(reference: Any) -> None:
    with chain(experimental_delegates=[]) as one:
        one.modify_graph_with_delegate(reference)
        one.allocate_tensors()
        assert one.report.fully_delegated


def test_state_stays(reference: Any) -> None:
    tensors = [TensorSpec("x", (1, 2)), TensorSpec("w", (2, 2), data=np.eye(2, dtype=np.float32))]
    tensors += [TensorSpec("r", (2, 2), data=np.eye(2, dtype=np.float32))]
    tensors += [TensorSpec("b", (2,), data=np.zeros(2, np.float32))]
    tensors += [TensorSpec("state", (1, 2), is_variable=True), TensorSpec("y", (1, 2))]
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("RNN", {}, (0, 1, 2, 3, 4), (5,))], (0,), (5,))
    )
    x = np.array([[1.0, -2.0]], np.float32)
    with allocated(tflgpu.Interpreter(model_content=content, experimental_delegates=[])) as one:
        for count in (1, 2, 3, 4):
            if count == 3:
                one.modify_graph_with_delegate(reference)
            set_and_run(one, {0: x})
            np.testing.assert_array_equal(one.get_tensor(5), x * count)
        assert one.report.fully_delegated


def test_caches_stay(reference: Any) -> None:
    with tflgpu.Interpreter(model_content=language_model(), experimental_delegates=[]) as one:
        decode = one.get_signature_runner("decode", carry=True)
        for at in range(4):
            made = decode(**step(TOKENS[at], at))
        one.modify_graph_with_delegate(reference)
        made = decode(**step(TOKENS[4], 4))["logits"]
    with tflgpu.Interpreter(model_content=language_model(), experimental_delegates=[]) as other:
        decode = other.get_signature_runner("decode", carry=True)
        for at in range(5):
            wanted = decode(**step(TOKENS[at], at))["logits"]
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_refused_by_name(reference: Any) -> None:
    with (
        chain(experimental_delegates=[reference]) as one,
        pytest.raises(StateError, match="has a delegate already, and keeps it"),
    ):
        one.modify_graph_with_delegate(reference)
    with chain(experimental_delegates=[]) as one:
        with pytest.raises(OptionError, match=r"takes tflgpu\.GpuDelegate, not NoneType"):
            one.modify_graph_with_delegate(None)  # type: ignore[arg-type]
        closed = tflgpu.GpuDelegate(backend="cpu_ref")
        closed.close()
        with pytest.raises(StateError, match="this delegate is closed"):
            one.modify_graph_with_delegate(closed)
        one.allocate_tensors()
        view = one.tensor(0)()
        with pytest.raises(StateError, match="reference to internal data"):
            one.modify_graph_with_delegate(reference)
        del view
        one.modify_graph_with_delegate(reference)
        with pytest.raises(StateError, match="has a delegate already"):
            one.modify_graph_with_delegate(reference)
    with pytest.raises(StateError, match="closed"):
        one.modify_graph_with_delegate(reference)


def test_one_that_cannot_take_the_model_changes_nothing() -> None:
    sum_of_integers = write_model(
        ModelSpec(
            [TensorSpec("x", (2,), DType.I64), TensorSpec("y", (2,), DType.I64)],
            [OperatorSpec("ADD", {}, (0, 0), (1,))],
            (0,),
            (1,),
        )
    )
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as strict,
        allocated(
            tflgpu.Interpreter(model_content=sum_of_integers, experimental_delegates=[])
        ) as one,
    ):
        one.set_tensor(0, np.array([1, 2]))
        with pytest.raises(UnsupportedError, match="ADD"):
            one.modify_graph_with_delegate(strict)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(1), [2, 4])
        with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as lenient:
            one.modify_graph_with_delegate(lenient)
            assert not one.report.fully_delegated
            one.close()
