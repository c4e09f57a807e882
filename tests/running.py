"""One run of an interpreter, ours or LiteRT's, or of a plan, for tests that ask about something
else than how it is driven."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tflgpu
from tflgpu.compiler.plan import Plan
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A function that raises, whatever its arguments are: another error each time, which keeps none
    of the frames that it went through."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error if isinstance(error, type) else copy.copy(error)

    return fail


def allocated(interpreter: Any) -> Any:
    """An interpreter, ours or LiteRT's, with its tensors."""
    interpreter.allocate_tensors()
    return interpreter


def set_and_run(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> None:
    """Sets inputs, by index or one for each input of the interpreter in its order, and runs."""
    if not isinstance(inputs, Mapping):
        details = interpreter.get_input_details()
        inputs = {d["index"]: x for d, x in zip(details, inputs, strict=True)}
    for index, array in inputs.items():
        interpreter.set_tensor(index, array)
    interpreter.invoke()


def allocate_and_run(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> None:
    """A first run, or the first after a resize."""
    interpreter.allocate_tensors()
    set_and_run(interpreter, inputs)


def outputs(interpreter: Any) -> list[Any]:
    """What a run has made, as arrays of its own."""
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


def results(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> list[Any]:
    """What a run of these inputs makes."""
    set_and_run(interpreter, inputs)
    return outputs(interpreter)


def first_results(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> list[Any]:
    """What a first run makes, or the first after a resize."""
    interpreter.allocate_tensors()
    return results(interpreter, inputs)


def side_by_side(
    content: bytes, inputs: Mapping[int, Any] | Sequence[Any], kernels: Any = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """The outputs of a model by LiteRT's interpreter, with ``kernels`` if not its default ones, and
    by ours, with a delegate on NumPy's devices."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.AUTO if kernels is None else kernels
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", **options) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        return first_results(theirs, inputs), first_results(ours, inputs)


def delegates_on(
    backend: str, require_backend: Callable[[str], object], **options: Any
) -> Iterator[list[tflgpu.GpuDelegate]]:
    """What an interpreter is given: a delegate of a backend that is here, or nothing by "none"."""
    if backend == "none":
        yield []
        return
    require_backend(backend)
    with tflgpu.GpuDelegate(backend=backend, **options) as made:
        yield [made]


def by_plan(device: Device, plan: Plan, *inputs: Array) -> list[Array]:
    """What a plan makes of its inputs, between guard bands."""
    recording = device.load(plan, guard_bands=True)
    try:
        for place, array in zip(recording.inputs, inputs, strict=True):
            place[...] = array
        recording.run()
        return [np.array(array) for array in recording.outputs]
    finally:
        recording.close()
