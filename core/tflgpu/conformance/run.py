"""Run op cases on a device, the way the delegate would: one by one or many in a load.

At a partition's edge tensors lie as NumPy has them. Inside one they lie channel-sliced, in the
precision's storage, with padding lanes that must stay zero; the host packs and unpacks them so,
and the kernels are those that a whole partition would run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Union

import attrs
import numpy as np

from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.conformance.internals import plan_of_internals
from tflgpu.conformance.merge import merge_plans
from tflgpu.conformance.samples import SampleCase
from tflgpu.contract.device import Device
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array


class Tensors(enum.Enum):
    """How an op's tensors lie."""

    EDGE = "edge"
    INTERNAL = "internal"


@attrs.frozen(eq=False)
class Prepared:
    """A case with its plan.

    Attributes:
        case: The case.
        plan: What a device loads.
        tensors: How the op's tensors lie.
    """

    case: SampleCase
    plan: Plan
    tensors: Tensors

    def fill(self, inputs: Sequence[Array]) -> None:
        """Write the case's operands into a recording's inputs."""
        for value, array in zip(self.case.given, inputs, strict=True):
            data = self.case.arrays[value.id]
            if self.tensors is Tensors.INTERNAL:
                rows = data.reshape(array.shape[0], -1)
                data = np.pad(rows, ((0, 0), (0, array.shape[1] - rows.shape[1])))
            np.copyto(array, data, casting="unsafe")

    def take(self, outputs: Sequence[Array]) -> list[Array]:
        """The op's results, and then its variables' new contents, in the tensors' own shapes and
        dtypes.

        Raises:
            AssertionError: a padding lane is not zero.
        """
        results = []
        made = [*self.case.graph.outputs, *self.case.variables]
        for i, (value, array) in enumerate(zip(made, outputs, strict=True)):
            found = np.array(array)
            if self.tensors is Tensors.INTERNAL:
                channels = value.shape[-1] if value.shape else 1
                padding = found[:, channels:]
                if padding.any():
                    at = np.argwhere(padding)[0]
                    raise AssertionError(
                        f"output {i}: padding lane {at[1]} at position {at[0]} holds "
                        f"{padding[tuple(at)]!r}, not zero"
                    )
                found = found[:, :channels].reshape(value.shape)
            with np.errstate(over="ignore"):
                results.append(found.astype(value.dtype.numpy))
        return results


#: What came of one case of several: its results, or what went wrong.
Result = Union[list[Array], TflgpuError, AssertionError]


def prepare(case: SampleCase, target: Target, tensors: Tensors) -> Prepared:
    """Compile a case that the target takes.

    Raises:
        KernelError: a generator broke a rule of the language or a limit of the device.
    """
    if tensors is Tensors.INTERNAL:
        return Prepared(case, plan_of_internals(case, target), tensors)
    graph = case.graph
    return Prepared(case, plan_of(graph.nodes, graph.inputs, graph.outputs, target), tensors)


def run_one(device: Device, item: Prepared, *, guard_bands: bool = False) -> list[Array]:
    """Load, run and close one case.

    Raises:
        TflgpuError: the device failed.
        AssertionError: a padding lane is not zero.
    """
    with closing(device.load(item.plan, guard_bands=guard_bands)) as recording:
        item.fill(recording.inputs)
        recording.run()
        return item.take(recording.outputs)


def run_many(device: Device, items: Sequence[Prepared]) -> list[Result]:
    """The results of several cases. All are loaded as one plan, which a device compiles at once;
    if that fails, each on its own, so that it is known which one is at fault."""
    if len(items) > 1:
        try:
            return _run_together(device, items)
        except TflgpuError:
            pass
    return [attempt(partial(run_one, device, item)) for item in items]


def _run_together(device: Device, items: Sequence[Prepared]) -> list[Result]:
    with closing(device.load(merge_plans([i.plan for i in items]))) as recording:
        inputs, outputs = list(recording.inputs), list(recording.outputs)
        for item in items:
            item.fill([inputs.pop(0) for _ in item.plan.inputs])
        recording.run()
        results: list[Result] = []
        for item in items:
            own = [outputs.pop(0) for _ in item.plan.outputs]
            results.append(attempt(partial(item.take, own)))
        return results


def attempt(action: Callable[[], list[Array]]) -> Result:
    """What it gives, or the error that it ends in."""
    try:
        return action()
    except (TflgpuError, AssertionError) as error:
        return error
