"""A plan that is too large for its device: what is said, and where it runs instead."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.plan import ArenaRef, ConstRef, Plan, PlannedDispatch, Ref
from tflgpu.errors import DeviceError
from tflgpu.runtime import opening
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.lifetimes import child
from tests.running import allocate_and_run

MOST = 1 << 20


def _reading_first(plan: Plan, ref: Ref) -> tuple[PlannedDispatch, ...]:
    """Its dispatches, the first of which reads ``ref``."""
    first = plan.dispatches[0]
    at = next(i for i, b in enumerate(first.kernel.buffers) if b.access == "read")
    changed = attrs.evolve(first, refs=(*first.refs[:at], ref, *first.refs[at + 1 :]))
    return (changed, *plan.dispatches[1:])


def _with_constant(plan: Plan) -> Plan:
    """The same with a first dispatch that reads a constant of four times the largest buffer."""
    dispatches = _reading_first(plan, ConstRef(len(plan.constants)))
    constants = (*plan.constants, np.zeros(MOST, np.float32))
    return attrs.evolve(plan, constants=constants, dispatches=dispatches)


def _with_arena(plan: Plan) -> Plan:
    """The same with one that reads an intermediate tensor of that size."""
    dispatches = _reading_first(plan, ArenaRef(0, 4 * MOST))
    return attrs.evolve(plan, arenas=(4 * MOST,), dispatches=dispatches)


TOO_LARGE = {"constant": _with_constant, "arena": _with_arena}


def _limit(delegate: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the delegate's device say that its buffers have at most ``most`` bytes."""
    device: Any = delegate.device
    caps = attrs.evolve(device.caps, max_buffer_bytes=most)
    device.caps = caps
    if "caps" in vars(device.inner):
        device.inner.caps = caps
    else:
        monkeypatch.setattr(type(device.inner), "caps", caps)
    if hasattr(device.inner, "_caps"):
        device.inner._caps = caps


@pytest.mark.parametrize("what", TOO_LARGE)
@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu", "cpu_ref"])
@pytest.mark.parametrize("fallback", [False, True], ids=["alone", "fallback"])
@pytest.mark.parametrize("asked", [False, True], ids=["any", "asked for"])
def test_a_plan_that_is_too_large(
    what: str, backend: str, fallback: bool, asked: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An error that says what would help; where the device was the delegate's own choice, the CPU,
    with the same as the reason."""
    index = 1 if backend == "cpu_ref" else 0
    delegate = tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=fallback)
    opened = delegate.provider.opened
    assert opened is not None
    opened.choice = attrs.evolve(opened.choice, explicit=asked)
    _limit(delegate, monkeypatch, MOST)
    interpreter = tflgpu.Interpreter(model_content=child.model(), experimental_delegates=[delegate])
    compile_graph = opening.compile_or_load

    def compiled(*given: Any) -> Any:
        found = compile_graph(*given)
        parts = [attrs.evolve(p, plan=p.plan and TOO_LARGE[what](p.plan)) for p in found.parts]
        return attrs.evolve(found, parts=tuple(parts))

    monkeypatch.setattr(opening, "compile_or_load", compiled)
    if asked or not fallback:
        with pytest.raises(DeviceError) as caught:
            interpreter.allocate_tensors()
        said = str(caught.value)
    else:
        interpreter.allocate_tensors()
        said = interpreter.report.refusals[0].reason
        child.check(interpreter)
    for part in (str(4 * MOST), str(MOST), "smaller inputs", "f16", "without backend="):
        assert part in said, said
    interpreter.close()
    delegate.close()


def _several_at_a_time() -> bytes:
    """Results of kernels of their own, of which more than one is alive."""
    tensors = [TensorSpec(f"t{i}", (1, 1024)) for i in range(6)]
    operators = [OperatorSpec("SOFTMAX", {"beta": 1.0 + i}, [0], [1 + i]) for i in range(3)]
    operators += [OperatorSpec("ADD", {}, [1, 2], [4]), OperatorSpec("ADD", {}, [4, 3], [5])]
    return write_model(ModelSpec(tensors, operators, [0], [5]))


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu", "cpu_ref"])
def test_an_arena_of_tensors_that_fit(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor fits into a buffer, and all that are alive at a time do not: there are several
    arenas, and the right result."""
    model, x = _several_at_a_time(), np.random.default_rng(0).random((1, 1024), np.float32)

    def run(delegates: list[tflgpu.GpuDelegate]) -> Any:
        with tflgpu.Interpreter(model_content=model, experimental_delegates=delegates) as made:
            allocate_and_run(made, {0: x})
            return made.get_tensor(5)

    plans: list[Plan] = []
    compile_graph = opening.compile_or_load

    def kept(*given: Any) -> Any:
        found = compile_graph(*given)
        plans.extend(p.plan for p in found.parts if p.plan is not None)
        return found

    monkeypatch.setattr(opening, "compile_or_load", kept)
    index = 1 if backend == "cpu_ref" else 0
    with tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False) as delegate:
        wanted = run([])
        np.testing.assert_allclose(run([delegate]), wanted, rtol=1e-5)
        (plan,) = plans
        regions = [r.nbytes for d in plan.dispatches for r in d.refs if isinstance(r, ArenaRef)]
        most = max(regions + [io.nbytes for io in (*plan.inputs, *plan.outputs)])
        (arena,) = plan.arenas
        assert arena > most
        _limit(delegate, monkeypatch, most)
        np.testing.assert_allclose(run([delegate]), wanted, rtol=1e-5)
        assert len(plans[1].arenas) > 1
        assert max(plans[1].arenas) <= most
