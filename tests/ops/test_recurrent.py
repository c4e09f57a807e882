"""Recurrent operators: options that the samples of all backends leave out, and state over many
calls, against LiteRT in both hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.ir.dtypes import Array
from tflgpu.ops.base import Sample
from tflgpu.ops.lstm_samples import every_full, every_sequence, full_samples, sequence_samples
from tflgpu.ops.registry import builtin_ops

from tests.ops.test_reference_vs_litert import run_litert, single_op_model
from tests.running import allocated, set_and_run

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

OPS = builtin_ops()
SAMPLED = {s.id for s in (*full_samples(), *sequence_samples())}
OPTIONS = [
    ("LSTM", s) if "time_major" not in s.fields else ("UNIDIRECTIONAL_SEQUENCE_LSTM", s)
    for s in (*every_full(), *every_sequence())
    if s.id not in SAMPLED
]
#: One of each op, with as much in it as there is.
STREAMS = {
    "LSTM": "full_everything",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "everything",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "second",
    "RNN": "odd",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "batch_major",
    "BIDIRECTIONAL_SEQUENCE_RNN": "second_weighted",
    "SVDF": "rank2",
}


@pytest.mark.parametrize(("op", "sample"), OPTIONS, ids=lambda p: p if isinstance(p, str) else p.id)
def test_an_option_of_lstm(op: str, sample: Sample) -> None:
    case = materialize(OPS[op], sample)
    outputs, states = run_litert(case)
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False)
    with delegate, ours(case, delegate) as interpreter:
        got = invoke(interpreter, case, case.arrays)
        kept = [interpreter.get_tensor(v.id) for v in case.variables]
    for a, b, c in zip(
        [*case.expected, *case.states], [*outputs, *states], [*got, *kept], strict=True
    ):
        case.tolerance().check(a, b, "the reference")
        case.tolerance().check(c, b, "the kernels")


def ours(case: SampleCase, delegate: Any) -> tflgpu.Interpreter:
    return allocated(
        tflgpu.Interpreter(model_content=single_op_model(case), experimental_delegates=[delegate])
    )


def inside_litert(case: SampleCase, delegate: Any) -> Any:
    return allocated(
        litert.Interpreter(model_content=single_op_model(case), experimental_delegates=[delegate])
    )


def invoke(interpreter: Any, case: SampleCase, arrays: dict[int, Array]) -> list[Array]:
    set_and_run(interpreter, arrays)
    return [interpreter.get_tensor(v.id) for v in case.graph.outputs]


@pytest.mark.parametrize("host", [ours, inside_litert], ids=["tflgpu", "litert"])
@pytest.mark.parametrize("op", STREAMS)
@pytest.mark.needs("vulkan")
def test_a_thousand_calls(op: str, host: Callable[[SampleCase, Any], Any]) -> None:
    """The state of each call comes from the one before, and is reset twice: at once, and late."""
    sample = next(s for s in OPS[op].samples() if s.id == STREAMS[op])
    case = materialize(OPS[op], sample)
    plain = allocated(litert.Interpreter(model_content=single_op_model(case)))
    rng = np.random.default_rng(7)
    tolerance = Tolerance.of(OPS[op].accuracy, sample.accumulates)
    with tflgpu.GpuDelegate(backend="vulkan", allow_fallback=False) as delegate:
        interpreter = host(case, delegate)
        moved = 0
        for call in range(1000):
            if call in (0, 700):
                interpreter.reset_all_variables(), plain.reset_all_variables()
            arrays = {v.id: rng.normal(0, 1, v.shape).astype(np.float32) for v in case.graph.inputs}
            got, expected = (invoke(i, case, arrays) for i in (interpreter, plain))
            if call % 100 in (0, 1, 50, 99):
                for a, b in zip(got, expected, strict=True):
                    tolerance.check(a, b, f"call {call}")
                for v in case.variables:
                    a, b = interpreter.get_tensor(v.id), plain.get_tensor(v.id)
                    tolerance.check(a, b, f"state {v.name} after call {call}")
                    moved += bool(np.abs(a).max() > 0)
        assert moved > 30
        del interpreter
