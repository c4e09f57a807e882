"""The time of a run's copies: what it takes less where its inputs, or its outputs, lie in buffers
of the device.

    plain             | upload | kernels | download |
    inputs bound               | kernels | download |
    outputs bound     | upload | kernels |

The three take turns, and their medians are compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import attrs
import numpy as np

from tflgpu.errors import TflgpuError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array

#: Turns, calls of a turn at most and at least, those of them that do not count, and the seconds
#: that a turn takes where there are more calls than the least.
_TURNS, _MOST, _LEAST, _DROPPED, _SECONDS = 5, 15, 3, 2, 0.1


@attrs.frozen
class CopyTimes:
    """Milliseconds of a run's copies.

    Attributes:
        upload, download: None where they are not known.
        reason: Why not; "" where both are.
    """

    upload: float | None = None
    download: float | None = None
    reason: str = ""


def copy_times(
    interpreter: Interpreter, inputs: Mapping[int, Array], copied: Sequence[int]
) -> CopyTimes:
    """Time the copies of a run.

    Args:
        interpreter: Allocated. Nothing of it is bound, and nothing is when this returns.
        inputs: By tensor index.
        copied: Bytes that a run copies to the device, and to the host.
    """
    if not any(copied):
        return CopyTimes(reason="nothing is copied: the device works in the host's memory")
    outputs = [int(d["index"]) for d in interpreter.get_output_details()]
    try:
        plain, *less = _times(interpreter, inputs, outputs)
    except TflgpuError as error:
        return CopyTimes(reason=str(error))
    low, middle, high = np.quantile(plain, (0.25, 0.5, 0.75))
    found: dict[str, float | None] = {}
    reasons: list[str] = []
    for name, times, nbytes in zip(("upload", "download"), less, copied, strict=True):
        saved = 1e3 * float(middle - np.median(times))
        found[name] = saved if nbytes and saved > 1e3 * (high - low) else None
        if found[name] is None:
            noise = f"less than the runs differ by ({1e3 * (high - low):.3f} ms)"
            reasons.append(f"{name}: {noise if nbytes else 'nothing is copied'}")
    return CopyTimes(**found, reason="; ".join(reasons))


def _times(
    interpreter: Interpreter, inputs: Mapping[int, Array], outputs: Sequence[int]
) -> list[list[float]]:
    """Seconds of runs: with nothing in the device's buffers, with the inputs, with the outputs."""
    ways: tuple[Sequence[int], ...] = ((), [*inputs], outputs)
    times: list[list[float]] = [[] for _ in ways]
    calls = max(_LEAST, min(_MOST, int(_SECONDS / _timed(interpreter))))
    with ExitStack() as stack:
        buffers = {}
        for index in (*inputs, *outputs):
            buffers[index] = stack.enter_context(interpreter.allocate_buffer(index))
            stack.callback(interpreter.unbind, index)
        for index, array in inputs.items():
            buffers[index].write(array)
        for _ in range(_TURNS):
            for way, seconds in zip(ways, times, strict=True):
                for index in way:
                    bind = interpreter.bind_input if index in inputs else interpreter.bind_output
                    bind(index, buffers[index])
                made = [_timed(interpreter) for _ in range(calls + _DROPPED)]
                seconds.extend(made[_DROPPED:])
                for index in way:
                    interpreter.unbind(index)
    return times


def _timed(interpreter: Interpreter) -> float:
    start = time.perf_counter()
    interpreter.invoke()
    return time.perf_counter() - start
