"""Real models and long lives: LiteRT's answers exactly, flat memory, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu.tools.runs import random_input
from tflgpu_litert.recording import LiteRTRecording

from tests.litert.litert_models import LITERT, i64_in_the_middle, litert, numbers, run
from tests.running import allocate_and_run, allocated, set_and_run

#: 8-bit and 16-bit weights, a state, custom ops, and plain floats.
MODELS = (
    "dtln_model_quant_1",
    "litert_torchaudio_conformer",
    "mobilenet_v1_0.25_224_float",
    "mobilenet_v2_1.0_224_ptq_int8",
    "movie_review_nl_classifier",
    "mp_hair_segmentation_customops",
    "mp_selfie_segmentation_f16",
    "tflm_mnist_lstm_fp32",
)


@pytest.mark.parametrize("name", MODELS)
def test_all_on_the_cpu_is_what_litert_gives(name: str, model_path: Callable[[str], Path]) -> None:
    """Not one bit is another: these are the same kernels on the same numbers."""
    path = str(model_path(name))
    native = allocated(LiteRT(path))
    rng = np.random.default_rng(4)
    given = {int(d["index"]): random_input(d, rng) for d in native.get_input_details()}
    with allocated(tflgpu.Interpreter(path)) as ours:
        for _ in range(2):
            for model in (native, ours):
                set_and_run(model, given)
            for detail in native.get_output_details():
                np.testing.assert_array_equal(
                    ours.get_tensor(detail["index"]), native.get_tensor(detail["index"])
                )
        report = ours.report
        assert all(r.runs_on.startswith(LITERT) for r in report.refusals)


def test_a_state_beside_a_device(
    delegate: tflgpu.GpuDelegate, model_path: Callable[[str], Path]
) -> None:
    """The LSTM is LiteRT's, the rest the device's; both CPU sides agree from run to run."""
    path = str(model_path("tflm_mnist_lstm_fp32"))
    results: dict[str, list[Any]] = {}
    options = delegate.options.changed(exclude=("UNIDIRECTIONAL_SEQUENCE_LSTM",))
    for side in ("litert", "cpu_ref"):
        with (
            tflgpu.GpuDelegate(options) as without,
            allocated(
                tflgpu.Interpreter(path, experimental_delegates=[without], cpu_backend=side)
            ) as interpreter,
        ):
            (detail,) = interpreter.get_input_details()
            found = results[side] = []
            for seed in range(3):
                set_and_run(interpreter, {detail["index"]: numbers(detail["shape"], seed)})
                (out,) = interpreter.get_output_details()
                found.append(interpreter.get_tensor(out["index"]))
            assert interpreter.report.delegated_nodes == 3
    assert not np.allclose(results["litert"][0], results["litert"][1])
    np.testing.assert_allclose(results["litert"], results["cpu_ref"], rtol=1e-4, atol=1e-6)


def test_nothing_is_left_behind() -> None:
    model, x = i64_in_the_middle(), numbers((1, 5, 7))
    seen: list[weakref.ref[Any]] = []
    for _ in range(20):
        with allocated(tflgpu.Interpreter(model_content=model)) as interpreter:
            (step,) = interpreter._main._memory.session.parts
            inner = step.recording
            assert isinstance(inner, LiteRTRecording)
            seen += [weakref.ref(inner), weakref.ref(inner._opened.interpreter)]
            del step, inner
            set_and_run(interpreter, {0: x})
        del interpreter
    gc.collect()
    assert [ref() for ref in seen] == [None] * 40


@pytest.mark.parametrize("is_held", [False, True])
def test_closing_lets_litert_go_with_the_last_array(is_held: bool) -> None:
    """Tensors are LiteRT's memory, which an array that somebody still holds keeps as it is."""
    model, x = i64_in_the_middle(), numbers((1, 5, 7))
    interpreter = tflgpu.Interpreter(model_content=model)
    allocate_and_run(interpreter, {0: x})
    recording = interpreter._main._memory.session.parts[0].recording
    native, at = weakref.ref(recording._opened.interpreter), recording.outputs[0].ctypes.data
    output = interpreter.get_output_details()[0]["index"]
    held = interpreter.tensor(output)() if is_held else interpreter.get_tensor(output)
    expected = held.copy()
    assert (held.ctypes.data == at) is is_held
    interpreter.close()
    del interpreter, recording
    gc.collect()
    assert (native() is not None) is is_held
    np.testing.assert_array_equal(held, expected)
    del held
    gc.collect()
    assert native() is None


def test_threads_with_an_interpreter_each() -> None:
    model = i64_in_the_middle()
    xs = [numbers((1, 5, 7), seed, -9, 9) for seed in range(4)]
    expected = [litert(model, [x])[0] for x in xs]
    wrong: list[int] = []

    def work(number: int) -> None:
        with allocated(tflgpu.Interpreter(model_content=model, num_threads=2)) as interpreter:
            for _ in range(50):
                set_and_run(interpreter, {0: xs[number]})
                if not np.array_equal(interpreter.get_tensor(6), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_one_model_on_both_sides_at_once(delegate: tflgpu.GpuDelegate) -> None:
    """Two interpreters of one delegate may have different CPU sides."""
    model, x = i64_in_the_middle(), numbers((1, 5, 7), 1)
    (a,), native = run(model, [x], delegate)
    (b,), numpy = run(model, [x], delegate, cpu_backend="cpu_ref")
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert [bool(r.runs_on) for r in native.refusals + numpy.refusals] == [True] * 3 + [False] * 3
