"""Many plans as one, so that a device compiles all their kernels together."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tflgpu.compiler.plan import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
    Ref,
)
from tflgpu.ir.dtypes import Array


def merge_plans(plans: Sequence[Plan]) -> Plan:
    """A plan that does what the given ones do, one after another, side by side in memory.

    Inputs and outputs are those of the first plan, then those of the second, and so on. All must
    be of one alignment.
    """
    alignment = plans[0].alignment
    arenas: list[int] = []
    constants: list[Array] = []
    inputs: list[PlannedIO] = []
    outputs: list[PlannedIO] = []
    dispatches: list[PlannedDispatch] = []
    for plan in plans:
        base = (len(arenas), len(constants), len(inputs), len(outputs))
        dispatches += [
            attrs.evolve(d, refs=tuple(_moved(r, *base) for r in d.refs)) for d in plan.dispatches
        ]
        arenas += plan.arenas or [0]  # one of no bytes, in which empty tensors lie
        constants += plan.constants
        inputs += plan.inputs
        outputs += plan.outputs
    return Plan(
        arenas, alignment, tuple(constants), tuple(inputs), tuple(outputs), tuple(dispatches)
    )


def _moved(ref: Ref, arena: int, constants: int, inputs: int, outputs: int) -> Ref:
    if isinstance(ref, ArenaRef):
        return attrs.evolve(ref, arena=ref.arena + arena)
    if isinstance(ref, ConstRef):
        return ConstRef(ref.index + constants)
    if isinstance(ref, InputRef):
        return InputRef(ref.index + inputs)
    return OutputRef(ref.index + outputs)
