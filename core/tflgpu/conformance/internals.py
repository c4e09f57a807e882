"""The plan of one node whose tensors lie as they do inside a partition."""

from __future__ import annotations

import math

from tflgpu.compiler.constants import ConstantItem, Constants
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
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import SampleCase
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Value
from tflgpu.lowering.absent import AbsentCount
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, NewState, Temp
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.stored_types import storage_of


def plan_of_internals(case: SampleCase, target: Target) -> Plan:
    """A plan whose inputs and outputs are channel-sliced buffers, of shape [outer, padded
    channels] each. A view is not taken for an alias: its copy kernel runs.

    Raises:
        KernelError: a generator broke a rule of the language.
    """
    site, alignment = target.site, target.alignment

    def layout(value: Value) -> Layout:
        storage = storage_of(value, site.precision, site.caps, site.integers)
        return Layout(value.shape, LayoutKind.C4, storage)

    rule = target.rule(case.node)
    assert isinstance(rule, KernelRule), rule
    low = Lowering(case.node, site.caps, site.precision, layout, integers=site.integers)
    rule.build(low)
    refs: dict[object, Ref] = {v.id: InputRef(i) for i, v in enumerate(case.given)}
    refs |= {v.id: OutputRef(i) for i, v in enumerate(case.graph.outputs)}
    made = [*case.graph.outputs, *case.variables]
    refs |= {("state", v.id): OutputRef(made.index(v)) for v in case.variables}
    constants: list[ConstantItem] = []
    dispatches: list[PlannedDispatch] = []
    arena = 0
    for item in low.dispatches:
        bound: list[Ref] = []
        for binding in item.bindings:
            if isinstance(binding, Constant):
                bound.append(ConstRef(len(constants)))
                constants.append(binding.data)
                continue
            if isinstance(binding, Temp) and ("temp", binding.id) not in refs:
                refs["temp", binding.id] = ArenaRef(arena, binding.layout.nbytes)
                arena += math.ceil(binding.layout.nbytes / alignment) * alignment
            assert not isinstance(binding, AbsentCount)  # all positions count
            bound.append(refs[_key(binding)])
        dispatches.append(PlannedDispatch(item.kernel, item.groups, tuple(bound), item.label))
    inputs, outputs = (tuple(_io(v, layout(v)) for v in values) for values in (case.given, made))
    return Plan(arena, alignment, Constants(tuple(constants)), inputs, outputs, tuple(dispatches))


def _key(binding: Temp | NewState | Value) -> object:
    if isinstance(binding, NewState):
        return ("state", binding.variable.id)
    return ("temp", binding.id) if isinstance(binding, Temp) else binding.id


def _io(value: Value, layout: Layout) -> PlannedIO:
    dtype = DType.from_numpy(layout.storage.numpy)
    return PlannedIO(value.name, (layout.outer, layout.slices * 4), dtype, layout.nbytes)
