"""A plan that is too large for its device: what is said, and where it runs instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError
from tflgpu.runtime.protocols import ConstRef, Plan, PlannedDispatch

sys.path.insert(0, str(Path(__file__).parent))
import child

MOST = 1 << 20


def _with_constant(plan: Plan) -> Plan:
    """The same with a first dispatch that reads a constant of four times the largest buffer."""
    first = plan.dispatches[0]
    at = next(i for i, b in enumerate(first.kernel.buffers) if b.access == "read")
    refs = (*first.refs[:at], ConstRef(len(plan.constants)), *first.refs[at + 1 :])
    changed: PlannedDispatch = attrs.evolve(first, refs=refs)
    constants = (*plan.constants, np.zeros(MOST, np.float32))
    return attrs.evolve(plan, constants=constants, dispatches=(changed, *plan.dispatches[1:]))


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu", "cpu_ref"])
@pytest.mark.parametrize("fallback", [False, True], ids=["alone", "fallback"])
@pytest.mark.parametrize("asked", [False, True], ids=["any", "asked for"])
def test_a_plan_that_is_too_large(
    backend: str, fallback: bool, asked: bool, require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An error that says what would help; where the device was the delegate's own choice, the CPU,
    with the same as the reason."""
    require_backend(backend)
    index = 1 if backend == "cpu_ref" else 0
    delegate = tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=fallback)
    delegate.choice = attrs.evolve(delegate.choice, explicit=asked)
    device: Any = delegate.device
    caps = attrs.evolve(device.caps, max_buffer_bytes=MOST)
    device.caps = caps
    if "caps" in vars(device.inner):
        device.inner.caps = caps
    else:
        monkeypatch.setattr(type(device.inner), "caps", caps)
    interpreter = tflgpu.Interpreter(model_content=child.model(), experimental_delegates=[delegate])
    compile_graph = tflgpu.GpuDelegate.compile

    def compiled(self: tflgpu.GpuDelegate, graph: Any) -> Any:
        found = compile_graph(self, graph)
        parts = [attrs.evolve(p, plan=p.plan and _with_constant(p.plan)) for p in found.parts]
        return attrs.evolve(found, parts=tuple(parts))

    monkeypatch.setattr(tflgpu.GpuDelegate, "compile", compiled)
    if asked or not fallback:
        with pytest.raises(DeviceError) as caught:
            interpreter.allocate_tensors()
        said = str(caught.value)
    else:
        interpreter.allocate_tensors()
        said = interpreter.delegation_report().refusals[0].reason
        child.check(interpreter)
    for part in (str(4 * MOST), str(MOST), "smaller inputs", "f16", "without backend="):
        assert part in said, said
    interpreter.close()
    delegate.close()
