"""What runs do with inputs and outputs that are bound: what comes out, what is copied on the way,
and which tensors cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import (
    DeviceError,
    InputError,
    StateError,
    UnsupportedError,
)
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.lowering.rule import Unsupported
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.interpreter import interpreter_models as models
from tests.interpreter.buffer_helpers import SHAPE, Open, Packed, X, Y, copies
from tests.running import allocate_and_run, allocated, set_and_run
from tests.small_models import small_model, small_spec, tensor_of


def test_bound_in_and_out_nothing_is_copied(delegate: Any, opened: Open) -> None:
    one = opened(delegate)
    with one.allocate_buffer("image") as x, one.allocate_buffer("scores") as y:
        assert (x.shape, x.dtype, x.nbytes) == (SHAPE, np.float32, X.nbytes)
        one.bind_input("image", x)
        one.bind_output("scores", y)
        for scale in (1, 2):
            x.write(X * scale)
            one.invoke()
            np.testing.assert_array_equal(y.read(), (X * scale + models.C) * models.C)
        assert copies(one) == (0, 0)
        np.testing.assert_array_equal(one.get_tensor(3), y.read())
        np.testing.assert_array_equal(one.get_tensor(0), X * 2)
        assert copies(one) == (0, 2 * X.nbytes)
        set_and_run(one, {0: X})
        np.testing.assert_array_equal(y.read(), Y)
        assert copies(one) == (X.nbytes, 2 * X.nbytes)
        one.reset_copied()
        assert one.copied.total == 0


def test_a_tensor_that_is_unbound_keeps_its_contents(delegate: Any, opened: Open) -> None:
    one = opened(delegate)
    with one.allocate_buffer(0) as x, one.allocate_buffer(3) as y:
        x.write(X)
        one.bind_input(0, x)
        one.bind_output(3, y)
        one.invoke()
        one.unbind()
        np.testing.assert_array_equal(one.get_tensor(0), X)
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        y.write(np.zeros(SHAPE, np.float32))
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        assert not y.read().any()
        one.unbind()  # nothing is bound, and nothing happens


@pytest.mark.needs("wgpu")
def test_what_is_not_bound_is_counted(opened: Open) -> None:
    """Where device and host do not share memory, which WebGPU never does."""
    with tflgpu.GpuDelegate(backend="wgpu", gpu_invoke_loop_times=2) as delegate:
        one = opened(delegate)
        one.invoke()
        assert copies(one) == (2 * X.nbytes, 2 * X.nbytes)
        one.reset_copied()
        with one.allocate_buffer(3) as y:
            one.bind_output(3, y)
            one.invoke()
            assert copies(one) == (2 * X.nbytes, 0)
            one.set_tensor(0, X)  # to the host's array: the run copies it
            assert copies(one) == (2 * X.nbytes, 0)


def test_two_models_in_a_row(delegate: Any, opened: Open) -> None:
    first, second = opened(delegate), opened(delegate)
    with first.allocate_buffer(3) as between, second.allocate_buffer(3) as last:
        first.bind_output(3, between)
        second.bind_input(0, between)
        second.bind_output(3, last)
        first.set_tensor(0, X)
        first.reset_copied()
        first.invoke()
        second.invoke()
        np.testing.assert_array_equal(last.read(), (Y + models.C) * models.C)
        assert copies(first)[1] == 0
        assert copies(second) == (0, 0)


def test_closed_while_bound(one: Any) -> None:
    x = one.allocate_buffer(0)
    x.write(X)
    one.bind_input(0, x)
    one.invoke()
    x.close()
    closed = (
        r"input 0 \('x'\) is bound to a DeviceBuffer.*this buffer is closed.*what is in it is lost"
    )
    for call in (one.invoke, one.invoke_async, lambda: one.get_tensor(0), one.unbind):
        with pytest.raises(StateError, match=closed):
            call()
    np.testing.assert_array_equal(one.get_tensor(3), Y)
    one.bind_input(0, X * 2)
    one.invoke()
    np.testing.assert_array_equal(one.get_tensor(3), (X * 2 + models.C) * models.C)


def test_a_masked_array_is_refused(one: Any) -> None:
    for bind, index in ((one.bind_input, 0), (one.bind_output, 3)):
        with pytest.raises(InputError, match="elements are masked"):
            bind(index, np.ma.masked_equal(X, X[0, 0]))


def test_after_a_resize_what_was_bound_must_fit(one: Any) -> None:
    with one.allocate_buffer(0) as x:
        x.write(X)
        one.bind_input(0, x)
        one.resize_tensor_input(0, (2, 3))
        with pytest.raises(
            InputError, match=r"float32\[2, 3\].*bound before the model was prepared"
        ):
            one.allocate_tensors()
        one.resize_tensor_input(0, SHAPE)
        one.allocate_tensors()
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        one.resize_tensor_input(0, (2, 3))
        one.unbind()
        allocate_and_run(one, {0: X[:2]})
        np.testing.assert_array_equal(one.get_tensor(3), Y[:2])


def test_by_the_original_s_names(one: Any) -> None:
    with one.allocate_buffer(0) as x, one.allocate_buffer(3) as y:
        one.bind_buffer_to_tensor(x, 0)
        one.bind_buffer_to_tensor(y, 3)
        x.write(X)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        one.set_allow_buffer_handle_output(True)
        one.reset_copied()
        one.invoke()
        for read in (lambda: one.get_tensor(3), one.tensor(3)):
            with pytest.raises(StateError, match="ensure_tensor_data_is_readable first"):
                read()
        one.ensure_tensor_data_is_readable(3)
        one.ensure_tensor_data_is_readable(0)
        np.testing.assert_array_equal(one.get_tensor(3), Y)
        np.testing.assert_array_equal(one.tensor(3)(), Y)
        assert copies(one) == (0, 2 * Y.nbytes)
        x.write(X * 2)
        one.invoke()
        with pytest.raises(StateError, match="ensure_tensor_data_is_readable first"):
            one.get_tensor(3)
        one.set_allow_buffer_handle_output(False)
        np.testing.assert_array_equal(one.get_tensor(3), (X * 2 + models.C) * models.C)
        with pytest.raises(StateError, match="no memory that the host sees"):
            one.tensor(0)()
        with pytest.raises(InputError, match="no input or output 1"):
            one.bind_buffer_to_tensor(x, 1)


def cpu_between() -> bytes:
    """RELU -> CUMSUM in f64, which no device takes -> RELU; x is read by the first alone."""
    return small_model(
        {"x": (3,), "d": tensor_of((3,), DType.F64), "y": (3,)}, "d = CAST(x)", "y = CAST(d)"
    )


def test_what_the_cpu_reads_is_no_buffer(reference: Any, opened: Open) -> None:
    one = opened(reference, cpu_between())
    x = np.array([1.5, -2, 3], np.float32)
    y = np.zeros(3, np.float32)
    for bind in (lambda: one.allocate_buffer(0), lambda: one.bind_input(0, Packed(x, (2, 0)))):
        with pytest.raises(UnsupportedError):
            bind()
    one.bind_input(0, x)
    one.bind_output(2, y)
    one.invoke()
    np.testing.assert_array_equal(y, x)


def shared_input() -> bytes:
    """y = RELU(x) on the device and z = CAST(x) to f64 on the CPU."""
    return small_model(
        {"x": (3,), "y": (3,), "z": tensor_of((3,), DType.F64)}, "y = RELU(x)", "z = CAST(x)"
    )


def test_an_input_of_the_device_and_of_the_cpu(reference: Any, opened: Open) -> None:
    one = opened(reference, shared_input())
    assert not one.report.fully_delegated
    with one.allocate_buffer(0) as x, one.allocate_buffer(1) as y:
        with pytest.raises(
            UnsupportedError, match=r"runs on the CPU .* reads it.*a NumPy array can"
        ):
            one.bind_input(0, x)
        with pytest.raises(UnsupportedError, match=r"runs on the CPU .* makes it"):
            one.bind_output(2, one.allocate_buffer(2))
        one.bind_output(1, y)
        given = np.array([1, -2, 3], np.float32)
        one.bind_input(0, given)
        one.invoke()
        np.testing.assert_array_equal(y.read(), np.maximum(given, 0))
        np.testing.assert_array_equal(one.get_tensor(2), given.astype(np.float64))


def three_parts() -> bytes:
    """y = RELU(x) and RELU6(x) on the device; h = the latter by way of f64 on the CPU; z = y + h
    and w = x * h on the device again."""
    names = ("x", "y", "k", "d", "h", "z", "w")
    tensors = [TensorSpec(n, (5,), DType.F64 if n == "d" else DType.F32) for n in names]
    operators = [
        OperatorSpec("RELU", {}, (0,), (1,)),
        OperatorSpec("RELU6", {}, (0,), (2,)),
        OperatorSpec("CAST", {}, (2,), (3,)),
        OperatorSpec("CAST", {}, (3,), (4,)),
        OperatorSpec("ADD", {}, (1, 4), (5,)),
        OperatorSpec("MUL", {}, (0, 4), (6,)),
    ]
    return write_model(ModelSpec(tensors, operators, (0,), (1, 5, 6)))


def test_what_several_parts_read(delegate: Any, opened: Open) -> None:
    """An input of two parts, and an output that a later part reads, lie in one buffer each."""
    one = opened(delegate, three_parts())
    assert [part.on_cpu for part in one._main.session.parts] == [False, True, False]  # type: ignore[union-attr]
    values = np.array([-3, -0.5, 0.5, 4, 9], np.float32)
    with (
        one.allocate_buffer("x") as x,
        one.allocate_buffer("y") as y,
        one.allocate_buffer("z") as z,
    ):
        x.write(values)
        for bind, name, buffer in (
            (one.bind_input, "x", x), (one.bind_output, "y", y), (one.bind_output, "z", z),
        ):  # fmt: skip
            bind(name, buffer)
        for scale in (1, 2):
            x.write(values * scale)
            one.invoke()
            v = values * scale
            h = np.clip(v, 0, 6)
            np.testing.assert_array_equal(y.read(), np.maximum(v, 0))
            np.testing.assert_array_equal(z.read(), np.maximum(v, 0) + h)
            np.testing.assert_array_equal(one.get_tensor(6), v * h)
        with pytest.raises(DeviceError, match=r"the same memory|one buffer"):
            one.bind_output("w", x)
        one.unbind()
        x.write(values * 7)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(6), v * h)
        np.testing.assert_array_equal(one.get_tensor(5), np.maximum(v, 0) + h)


def test_without_a_device(opened: Open) -> None:
    one = opened(None)
    with pytest.raises(UnsupportedError, match=r"no device for a buffer .* bind a NumPy array"):
        one.allocate_buffer(0)
    y = np.zeros(SHAPE, np.float32)
    one.bind_input("image", X)
    one.bind_output("scores", y)
    one.invoke()
    np.testing.assert_array_equal(y, Y)
    assert copies(one) == (0, 0)


@pytest.mark.parametrize("backend", ["cpu_ref", "litert"])
def test_devices_that_run_nodes(backend: str, opened: Open) -> None:
    """They have no buffers, and nothing is copied to a device that is the host."""
    with tflgpu.GpuDelegate(backend=backend, device=0) as delegate:
        one = opened(delegate)
        with pytest.raises(UnsupportedError, match="no device for a buffer"):
            one.allocate_buffer(0)
        y = np.zeros(SHAPE, np.float32)
        one.bind_input(0, X)
        one.bind_output(3, y)
        one.invoke()
        np.testing.assert_array_equal(y, Y)
        assert copies(one) == (0, 0)


def compared() -> bytes:
    """x > 0, whose result is a boolean."""
    return small_model(
        {"x": (5,), "zero": tensor_of((), data=np.float32(0)), "y": tensor_of((5,), DType.BOOL)},
        "y = GREATER(x, zero)",
    )


def test_what_the_host_converts_is_no_buffer(delegate: Any, opened: Open) -> None:
    """Booleans are words at the edge of a part."""
    one = opened(delegate, compared())
    x = np.array([-1, 0, 1, np.nan, np.inf], np.float32)
    with pytest.raises(UnsupportedError, match=r"as int32, and the host converts.* bool"):
        one.bind_output(2, one.allocate_buffer(2))
    found = np.zeros(5, bool)
    one.bind_output(2, found)
    one.bind_input(0, x)
    one.invoke()
    np.testing.assert_array_equal(found, x > 0)


def quantized() -> bytes:
    """RELU of 8-bit numbers."""
    quant = Quantization((0.1,), (128,))
    return small_model(
        dict.fromkeys("xy", tensor_of((7, 3), DType.U8, quantization=quant)), "y = RELU(x)"
    )


def test_stored_numbers(delegate: Any, opened: Open) -> None:
    """A quantized model takes and gives its stored numbers, converted on the device; or says that
    the device has no bytes."""
    one = opened(delegate, quantized())
    x = np.arange(21, dtype=np.uint8).reshape(7, 3) * 12
    want = np.maximum(x, 128)
    with one.allocate_buffer(0) as given, one.allocate_buffer(1) as found:
        given.write(x)
        if delegate.caps.int8_storage:
            one.bind_input(0, given)
            one.bind_output(1, found)
            one.invoke()
            np.testing.assert_array_equal(found.read(), want)
            assert copies(one) == (0, 0)
        else:
            # WGSL has no bytes, so that the host widens them.
            with pytest.raises(UnsupportedError, match="takes it as int32"):
                one.bind_input(0, given)
    result = np.zeros_like(x)
    one.bind_input(0, x)
    one.bind_output(1, result)
    one.invoke()
    np.testing.assert_array_equal(result, want)


def passed_through() -> bytes:
    """One input is an output, too, and another is not read."""
    return small_model(dict.fromkeys(("x", "y", "unread"), (3,)), "y = RELU(x)", outputs="y x")


def test_inputs_that_are_outputs_or_not_read(reference: Any, opened: Open) -> None:
    one = opened(reference, passed_through())
    with pytest.raises(UnsupportedError, match="an input and an output of the model at once"):
        one.bind_input(0, one.allocate_buffer(0))
    with pytest.raises(UnsupportedError, match="no operator reads it"):
        one.bind_input(2, one.allocate_buffer(2))
    x = np.array([1, -2, 3], np.float32)
    one.bind_input(0, x)
    one.invoke()
    np.testing.assert_array_equal(one.get_tensor(0), x)
    np.testing.assert_array_equal(one.get_tensor(1), np.maximum(x, 0))


def test_the_accuracy_guard_looks_first(opened: Open) -> None:
    guard = tflgpu.AccuracyGuard(runs=1)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, accuracy_guard=guard) as delegate:
        one = opened(delegate)
        with one.allocate_buffer(0) as x:
            with pytest.raises(UnsupportedError, match="accuracy guard"):
                one.bind_input(0, x)
            with pytest.raises(UnsupportedError, match="accuracy guard"):
                one.bind_input(0, X)
            set_and_run(one, {0: X})
            x.write(X)
            one.bind_input(0, x)
            one.invoke()
            np.testing.assert_array_equal(one.get_tensor(3), Y)


def test_between_guard_bands(opened: Open) -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, guard_bands=True) as delegate:
        one = opened(delegate)
        with pytest.raises(UnsupportedError, match="between guard bands"):
            one.bind_input(0, one.allocate_buffer(0))


def test_bindings_outlive_a_broken_session(one: Any) -> None:
    with one.allocate_buffer(0) as x, one.allocate_buffer(3) as y:
        x.write(X)
        one.bind_input(0, x)
        one.bind_output(3, y)
        session = one._main.session
        assert session is not None
        recording: Any = session.parts[0].recording
        recording._failure, recording._unfinished = "it was spoilt", True
        with pytest.raises(DeviceError, match="it was spoilt"):
            one.invoke()
        with pytest.raises(StateError, match="no results"):
            one.get_tensor(3)
        one.invoke()
        assert one._main.session is not session
        np.testing.assert_array_equal(y.read(), Y)
        assert copies(one) == (0, 0)


def test_a_signature_runs_on_what_is_bound(one: Any) -> None:
    with one.allocate_buffer("image") as x, one.allocate_buffer("scores") as y:
        one.bind_input("image", x)
        one.bind_output("scores", y)
        found = one.get_signature_runner("serve")(image=X)
        np.testing.assert_array_equal(found["scores"], Y)
        np.testing.assert_array_equal(x.read(), X)
        np.testing.assert_array_equal(y.read(), Y)


def test_runs_in_flight_read_what_is_bound_and_write_nothing(one: Any) -> None:
    with one.allocate_buffer(0) as x, one.allocate_buffer(3) as y:
        one.bind_input(0, x)
        for scale in (1, 2):
            x.write(X * scale)
            run = one.invoke_async()
            np.testing.assert_array_equal(run.get_tensor(3), (X * scale + models.C) * models.C)
        one.bind_output(3, y)
        with pytest.raises(StateError, match=r"output 3 .* which invoke_async does not write"):
            one.invoke_async()
        one.invoke()
        np.testing.assert_array_equal(y.read(), (X * 2 + models.C) * models.C)


def test_a_device_without_buffers(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        device: Any = delegate.device
        refused = Unsupported("it has none")
        monkeypatch.setattr(device.inner, "allocate", lambda nbytes: refused)
        monkeypatch.setattr(device.inner, "import_buffer", lambda source: refused)
        one = opened(delegate)
        with pytest.raises(UnsupportedError, match=r"a buffer for input 0 \('x'\): it has none"):
            one.allocate_buffer(0)
        one.bind_input(0, X)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(3), Y)


def test_an_input_that_is_an_output_is_bound_once() -> None:
    """A second array took the place of the first, which runs read no more."""
    spec = small_spec({"x": (1, 4), "y": (1, 4)}, "y = ABS(x)", outputs="y x")
    given, taken = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)
    with allocated(tflgpu.Interpreter(model_content=write_model(spec))) as one:
        one.bind_input(0, given)
        with pytest.raises(UnsupportedError, match="is input and output"):
            one.bind_output(0, taken)
        given[:] = -3
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(1), -given)
        np.testing.assert_array_equal(one.get_tensor(0), given)
        one.unbind(0)
        one.bind_output(0, taken)
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(1), -given)
        np.testing.assert_array_equal(taken, given)


def test_a_constant_that_is_an_output_is_bound_and_let_go() -> None:
    spec = small_spec({"x": (2,), "one": np.ones(2, np.float32), "y": (2,)}, "y = ADD(x, one)",
                      outputs="y one")  # fmt: skip
    taken = np.zeros(2, np.float32)
    with allocated(tflgpu.Interpreter(model_content=write_model(spec))) as one:
        one.bind_output(1, taken)
        one.invoke()
        np.testing.assert_array_equal(taken, [1, 1])
        taken[:] = 7
        one.unbind()
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(1), [1, 1])
        np.testing.assert_array_equal(one.get_tensor(2), [1, 1])
