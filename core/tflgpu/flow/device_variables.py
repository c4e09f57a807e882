"""Variables that stay on the device between runs.

    READ_VARIABLE -> x, from a run's beginning        y -> ASSIGN_VARIABLE, at its end

Where compiled operators alone read x and make y, the piece that they are in keeps the variable on
the device, as sessions keep state tensors (`tflgpu.runtime.state`). The other steps of a run get a
`DeviceVariable`, which copies the contents to the host when they are needed: for a result of the
model, another signature, or a piece for other shapes. An assignment from elsewhere is uploaded
before the piece runs.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from tflgpu.errors import StateError
from tflgpu.flow.operators import (
    ASSIGN,
    CALL_ONCE,
    READ,
    VAR_HANDLE,
    called,
    handle_of,
    keeps_state,
)
from tflgpu.flow.store import DeviceVariable, Handle
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


@attrs.frozen
class PieceVariable:
    """A variable that a piece may keep.

    Attributes:
        handle: Which.
        read: The tensor that has what it holds when a run begins.
        made: The one that is assigned to it.
        users: Operators that take ``read``, by index.
    """

    handle: Handle
    read: int
    made: int
    users: frozenset[int]


@attrs.frozen
class VariablePlan:
    """Which variables of a subgraph may stay on the device, decided before anything is compiled.

    Attributes:
        keeps: Those that a piece may keep, by the tensor that is read.
        lazy: Results of READ_VARIABLE that only compiled operators take, or are results of the
            subgraph.
        why: Why the others stay in host memory.
    """

    keeps: dict[int, PieceVariable]
    lazy: frozenset[int]
    why: dict[Handle, str]


NOTHING = VariablePlan({}, frozenset(), {})


def keepable(info: SubgraphInfo, subgraphs: tuple[SubgraphInfo, ...]) -> VariablePlan:
    """Look at a subgraph's operators, in the order of the file."""
    handles: dict[int, Handle] = {}
    uses: dict[Handle, list[OperatorInfo]] = {}
    why: dict[Handle, str] = {}
    everywhere = ""
    for operator in info.operators:
        where = f"operator {operator.index} ({operator.name})"
        if not operator.is_custom and operator.name == VAR_HANDLE:
            handles[operator.outputs[0]] = handle_of(operator)
        elif not operator.is_custom and operator.name in (READ, ASSIGN):
            handle = handles.get(operator.inputs[0])
            if handle is None:
                everywhere = f"{where} takes a variable that is named elsewhere"
            else:
                uses.setdefault(handle, []).append(operator)
        elif not operator.is_custom and operator.name == CALL_ONCE:
            why.update((handle, f"{where} may set it after it was used") for handle in uses)
        else:
            taken = {handles[i] for i in operator.inputs if i in handles}
            why.update((handle, f"{where} takes it") for handle in taken)
            if keeps_state(subgraphs, called(operator)):
                everywhere = f"{where} runs subgraphs that use variables"
    keeps: dict[int, PieceVariable] = {}
    lazy: set[int] = set()
    for handle, operators in uses.items():
        reason = everywhere or why.get(handle)
        found = reason or _keep(info, handle, operators)
        if isinstance(found, str):
            why[handle] = found
        else:
            keeps[found.read] = found
            lazy |= {o.outputs[0] for o in operators if o.name == READ}
    return VariablePlan(keeps, frozenset(lazy), why)


def _keep(info: SubgraphInfo, handle: Handle, uses: list[OperatorInfo]) -> PieceVariable | str:
    """One variable, by the operators that read it and assign to it, in order; or why not."""
    assigned = [o for o in uses if o.name == ASSIGN]
    if not assigned:
        return "nothing assigns to it here, and it is sent with each run"
    if len(assigned) > 1:
        return "it is assigned to several times in a run"
    (assign,) = assigned
    at = uses.index(assign)
    takers: dict[int, list[OperatorInfo]] = {o.outputs[0]: [] for o in uses if o.name == READ}
    made = assign.inputs[1]
    takers.setdefault(made, [])
    maker = None
    for operator in info.operators:
        for i in operator.inputs:
            if i in takers:
                takers[i].append(operator)
        if made in operator.outputs:
            maker = operator
    before = [o.outputs[0] for o in uses[:at]]
    read = [i for i in before if takers[i] or i in info.outputs]
    if len(read) != 1:
        return (
            "it is read several times in a run"
            if read
            else "nothing reads it before it is assigned to"
        )
    if maker is None or run_by_host(maker):
        return "what is assigned to it is no result of a compiled operator"
    if read[0] in info.outputs:
        return "what it held before a run is a result of that"
    if any(takers[o.outputs[0]] for o in uses[at + 1 :]):
        return "it is read in another form after it was assigned to"
    for operator in (*takers[read[0]], *takers[made]):
        if run_by_host(operator) and operator is not assign:
            return f"operator {operator.index} ({operator.name}), which the host runs, takes it"
    return PieceVariable(handle, read[0], made, frozenset(o.index for o in takers[read[0]]))


def contents(what: Any) -> Any:
    """A value between two steps, with a `DeviceVariable` as the array that it stands for.

    Raises:
        StateError, DeviceError: as `DeviceVariable.array`.
    """
    return what.array() if isinstance(what, DeviceVariable) else what


class VariableOwner(Protocol):
    """A piece that keeps variables."""

    count: int

    def peek(self, handle: Handle) -> Array:
        """A copy of a variable's contents."""


def lent(owner: VariableOwner, handle: Handle, like: Array) -> DeviceVariable:
    """The contents that a piece keeps now, as a `DeviceVariable` with the form of ``like``."""
    at = owner.count

    def read() -> Array:
        if owner.count != at:
            raise StateError(f"{handle} has changed since it was read; this is a defect of tflgpu")
        return owner.peek(handle)

    return DeviceVariable(handle, like.shape, like.dtype, read)
