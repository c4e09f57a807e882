"""What the tests of variables on a device share: a device that is watched, and runs beside LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from flow_models import (
    Op,
    accumulator,
    initializer,
    model,
)
from tflgpu.compiler.report_values import Place
from tflgpu.ir.dtypes import Array

ONCE: Op = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})
X = np.array([1, 2], np.float32)
ADDING = model(accumulator(ONCE), initializer([10, 20]))


class Device:
    """cpu_ref's kernel interpreter, whose calls are counted and fail when told to.

    Attributes:
        fails: What the next runs raise.
        unreadable: What reading any buffer raises.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from tflgpu_cpu_ref.memory import HostBuffer
        from tflgpu_cpu_ref.recording import CpuRefRecording

        self.fails: list[BaseException] = []
        self.unreadable: Exception | None = None
        self.reads = self.writes = self.runs = 0
        run, read, write = CpuRefRecording._run, HostBuffer._read, HostBuffer._write

        def _run(recording: Any) -> None:
            self.runs += 1
            if self.fails:
                raise self.fails.pop()
            run(recording)

        def _read(buffer: Any, nbytes: int) -> Any:
            self.reads += 1
            if self.unreadable is not None:
                raise self.unreadable
            return read(buffer, nbytes)

        def _write(buffer: Any, data: Any) -> None:
            self.writes += 1
            write(buffer, data)

        patch.setattr(CpuRefRecording, "_run", _run)
        patch.setattr(HostBuffer, "_read", _read)
        patch.setattr(HostBuffer, "_write", _write)

    @property
    def moved(self) -> tuple[int, int]:
        return self.writes, self.reads


def step(interpreter: Any, *given: Any) -> Array:
    for details, value in zip(interpreter.get_input_details(), given, strict=True):
        interpreter.set_tensor(details["index"], value)
    interpreter.invoke()
    found: Array = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return found


def litert(content: bytes) -> Any:
    made = LiteRT(model_content=content)
    made.allocate_tensors()
    return made


def alike(mine: Any, theirs: Any, count: int, x: Any = X) -> None:
    for n in range(count):
        given = (np.asarray(x) * (n + 1)).astype(np.float32)
        np.testing.assert_allclose(step(mine, given), step(theirs, given), rtol=1e-6)


def of_variables(interpreter: Any) -> dict[str, str]:
    """Why operators on variables are not on the device; "" for one that is."""
    report = interpreter.delegation_report()
    names = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")
    assert all(
        (r.place is Place.DEVICE) == (not r.reason) for r in report.operators if r.op in names
    )
    return {row.op: row.reason for row in report.operators if row.op in names}
