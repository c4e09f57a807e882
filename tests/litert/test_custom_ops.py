"""Custom operators in native code, registered with LiteRT, in both hosts, beside a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from ai_edge_litert import interpreter as litert
from flatbuffers import flexbuffers
from tflgpu.interpreter import InterpreterWithCustomOps, OpResolverType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.litert.litert_models import DEVICES, numbers
from tests.running import allocate_and_run
from tests.small_models import small_model

genai = pytest.importorskip("ai_edge_litert.pywrap_genai_ops", reason="LiteRT has no registerer")
#: Attention, which XNNPACK has too; without it only whoever registers it has it.
NAME = "odml.scaled_dot_product_attention"
PLAIN = "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
#: One query of two heads: for several, LiteRT 2.3 computes something else than XNNPACK does.
QUERY, KEYS, MASK = (1, 1, 2, 4), (1, 5, 2, 4), (1, 1, 1, 5)
INPUTS = [numbers(shape, seed) for seed, shape in enumerate((QUERY, KEYS, KEYS, MASK))]


def attention() -> bytes:
    """RELU, attention with a scale of 0.5, NEG."""
    made = flexbuffers.Builder()
    with made.Map():
        made.Key("scale")
        made.Float(0.5)
    tensors = [
        TensorSpec(name, shape)
        for name, shape in zip("qkvmabc", (QUERY, KEYS, KEYS, MASK, *[QUERY] * 3), strict=True)
    ]
    operators = [
        OperatorSpec("RELU", {}, [0], [4]),
        OperatorSpec(NAME, {}, [4, 1, 2, 3], [5], custom_options=bytes(made.Finish())),
        OperatorSpec("NEG", {}, [5], [6]),
    ]
    return write_model(ModelSpec(tensors, operators, [0, 1, 2, 3], [6]))


def expected() -> Any:
    """By its definition: softmax(q k / 2 + mask) v for each head."""
    query, keys, values, mask = (x.astype(np.float64) for x in INPUTS)
    scores = np.einsum("bthd,bshd->bhts", np.maximum(query, 0), keys) * 0.5 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return -np.einsum("bhts,bshd->bthd", weights, values)


def run(interpreter: Any) -> Any:
    allocate_and_run(interpreter, INPUTS)
    return interpreter.get_tensor(6)


def given(registerers: list[Any], **options: Any) -> dict[str, Any]:
    kind = OpResolverType[PLAIN]
    return {
        "custom_op_registerers": registerers,
        "model_content": attention(),
        "experimental_op_resolver_type": kind,
        **options,
    }


def in_litert(registerers: list[Any], **options: Any) -> Any:
    kind = litert.OpResolverType[PLAIN]
    found = given(registerers, **options) | {"experimental_op_resolver_type": kind}
    return litert.InterpreterWithCustomOps(**found)


@pytest.fixture
def delegate() -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(**DEVICES["kernels"]) as made:
        yield made


def test_beside_a_device_in_tflgpu(delegate: tflgpu.GpuDelegate) -> None:
    found = given([genai.GenAIOpsRegisterer], experimental_delegates=[delegate])
    with InterpreterWithCustomOps(**found) as interpreter:
        np.testing.assert_allclose(run(interpreter), expected(), rtol=1e-5, atol=1e-6)
        report = interpreter.report
    assert [(r.op, r.runs_on[:6]) for r in report.refusals] == [(NAME, "LiteRT")]
    assert (report.delegated_nodes, report.total_nodes) == (2, 3)


def test_beside_a_device_in_litert(delegate: tflgpu.GpuDelegate) -> None:
    found = in_litert([genai.GenAIOpsRegisterer], experimental_delegates=[delegate])
    np.testing.assert_allclose(run(found), expected(), rtol=1e-5, atol=1e-6)
    report = delegate.reports[-1]
    assert [r.op for r in report.refusals] == [NAME]
    assert (report.delegated_nodes, report.total_nodes) == (2, 3)


def test_only_the_registerer_brings_it() -> None:
    """Else the tests above would say nothing of registerers."""
    with (
        InterpreterWithCustomOps(**given([])) as interpreter,
        pytest.raises(tflgpu.UnsupportedError, match=f"unresolved custom op: {NAME}"),
    ):
        run(interpreter)
    with pytest.raises(RuntimeError, match=f"unresolved custom op: {NAME}"):
        run(in_litert([]))


def test_a_function_of_python_is_called_too() -> None:
    addresses = []

    def register(address: int) -> None:
        addresses.append(address)
        genai.GenAIOpsRegisterer(address)

    with InterpreterWithCustomOps(**given([register])) as interpreter:
        np.testing.assert_allclose(run(interpreter), expected(), rtol=1e-5, atol=1e-6)
    assert addresses
    assert all(addresses)


@pytest.mark.parametrize("registerer", ["tflgpu_no_such_function", lambda address: 1 / 0])
def test_a_registerer_that_fails_is_named(registerer: Any) -> None:
    """When the interpreter is made. LiteRT says it of a name likewise, and of a function what that
    raises."""
    says = r"Looking up symbol 'tflgpu_no_such_function' failed|division by zero"
    with pytest.raises(ValueError, match=says) as error:
        InterpreterWithCustomOps(**given([registerer]))
    assert isinstance(error.value, tflgpu.errors.OptionError)
    with pytest.raises((ValueError, ZeroDivisionError), match=says):
        in_litert([registerer])


def test_the_constructor_calls_each_once() -> None:
    """As LiteRT's does, without a custom operator in the model, too."""
    for make in (InterpreterWithCustomOps, litert.InterpreterWithCustomOps):
        calls: list[int] = []
        model = small_model({"x": (1,)}, outputs="x")
        make(custom_op_registerers=[calls.append, calls.append], model_content=model)
        assert len(calls) == 2
        assert all(calls)


@pytest.mark.parametrize("device", [None, DEVICES["kernels"]], ids=["alone", "kernels"])
def test_numpy_takes_none(device: dict[str, Any] | None) -> None:
    delegates = [] if device is None else [tflgpu.GpuDelegate(**device)]
    made = given(
        [genai.GenAIOpsRegisterer], cpu_backend="cpu_ref", experimental_delegates=delegates
    )
    with pytest.raises(tflgpu.DeviceError, match="NumPy references take no operators in native"):
        InterpreterWithCustomOps(**made)
    for each in delegates:
        each.close()
