"""A plan whose dispatches run several times, each time on the results of the time before.

    before    in -> [ d1 d2 d3 ] -> out
    after     in -> [ d1 d2 d3 ] -> slot 0 -> [ d1 d2 d3 ] -> slot 1 ... -> out

So a loop whose number of rounds is known is one run, though only one round of it was compiled: no
kernel is another, and nothing but the slots takes memory. What is carried has two of them, since a
round may read the one to its end while it writes the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tflgpu.compiler.parts import Part
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan, PlannedDispatch, Ref
from tflgpu.ir.graph import Value
from tflgpu.lowering.reason import ReasonCode, Unsupported


def carried(part: Part, pairs: Sequence[tuple[int, int]]) -> Mapping[int, int] | Unsupported:
    """By input of a part's plan, the output that is there in the next round; or why it cannot be.

    Args:
        part: A part on a device, with a plan.
        pairs: Values of the graph by id: a result, and the input that it is in the next round.
    """
    assert part.plan is not None
    if part.states:
        return Unsupported("it keeps state between runs", ReasonCode.CONTROL_FLOW)
    inputs = {v.id: i for i, v in enumerate(part.inputs)}
    outputs = {v.id: i for i, v in enumerate(part.outputs)}
    found: dict[int, int] = {}
    for made, given in pairs:
        if given not in inputs:
            continue  # nothing reads it
        if made not in outputs:
            return Unsupported(f"value {made} is known before it runs", ReasonCode.CONTROL_FLOW)
        i, o = inputs[given], outputs[made]
        before, after = part.plan.inputs[i], part.plan.outputs[o]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            return Unsupported(
                f"{after.name} is {after.dtype.value}{list(after.shape)}, and the next round takes "
                f"{before.dtype.value}{list(before.shape)}",
                ReasonCode.CONTROL_FLOW,
            )
        found[i] = o
    return found


def as_state(part: Part, carries: Mapping[int, int]) -> tuple[Part, tuple[Value, ...]] | None:
    """A part whose plan has what is carried as a plan has state: behind its inputs, and behind its
    outputs. And the inputs that it is. None where one result is several of them.

    Args:
        part: A part on a device, with a plan.
        carries: As `carried` gives it.
    """
    plan = part.plan
    assert plan is not None
    if len(set(carries.values())) < len(carries):
        return None
    inputs = [*(i for i in range(len(plan.inputs)) if i not in carries), *carries]
    kept = set(carries.values())
    outputs = [*(o for o in range(len(plan.outputs)) if o not in kept), *carries.values()]
    place = {InputRef(i): InputRef(at) for at, i in enumerate(inputs)}
    made = {OutputRef(o): OutputRef(at) for at, o in enumerate(outputs)}

    def moved(ref: Ref) -> Ref:
        if isinstance(ref, InputRef):
            return place[ref]
        return made[ref] if isinstance(ref, OutputRef) else ref

    plan = attrs.evolve(
        plan,
        inputs=tuple(plan.inputs[i] for i in inputs),
        outputs=tuple(plan.outputs[o] for o in outputs),
        dispatches=tuple(
            attrs.evolve(d, refs=tuple(moved(r) for r in d.refs)) for d in plan.dispatches
        ),
    )
    count = len(carries)
    changed = attrs.evolve(
        part,
        plan=plan,
        inputs=tuple(part.inputs[i] for i in inputs[: len(inputs) - count]),
        outputs=tuple(part.outputs[o] for o in outputs[: len(outputs) - count]),
    )
    return changed, tuple(part.inputs[i] for i in carries)


def repeated(plan: Plan, carries: Mapping[int, int], count: int) -> Plan:
    """A plan that runs another ``count`` times, at least once.

    Args:
        plan: What is run.
        carries: As `carried` gives it.
        count: How often.
    """
    if count == 1:
        return plan
    arena, end = len(plan.arenas), 0
    slots: dict[int, tuple[ArenaRef, ArenaRef]] = {}
    for o, io in enumerate(plan.outputs):
        both: list[ArenaRef] = []
        for _ in range(2):
            both.append(ArenaRef(end, io.nbytes, arena))
            end += -(-io.nbytes // plan.alignment) * plan.alignment
        slots[o] = both[0], both[1]
    dispatches: list[PlannedDispatch] = []
    for at in range(count):

        def placed(ref: Ref, at: int = at) -> Ref:
            if isinstance(ref, InputRef) and at and ref.index in carries:
                return slots[carries[ref.index]][(at - 1) % 2]
            if isinstance(ref, OutputRef) and at < count - 1:
                return slots[ref.index][at % 2]
            return ref

        dispatches += [
            attrs.evolve(d, refs=tuple(placed(ref) for ref in d.refs)) for d in plan.dispatches
        ]
    return attrs.evolve(plan, arenas=(*plan.arenas, end), dispatches=tuple(dispatches))
