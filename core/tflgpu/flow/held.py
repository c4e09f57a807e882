"""Variables that stay on the device between runs.

    READ_VARIABLE -> x, from a run's beginning        y -> ASSIGN_VARIABLE, at its end

Where compiled operators alone read x and make y, the piece that they are in keeps the variable, as
sessions keep state tensors (`tflgpu.runtime.state`), and what is handed on between the steps of a
run is a `Held`: where the variable is. Whoever wants its contents (a result of the model, another
signature, a piece for other shapes) has them read, and an assignment from elsewhere lets the piece
begin with that.
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
from tflgpu.flow.store import Handle, Held
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


@attrs.frozen
class Keep:
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
class Keepable:
    """The variables of a subgraph, looked at before anything is compiled.

    Attributes:
        keeps: Those that a piece may keep, by the tensor that is read.
        lazy: Results of READ_VARIABLE that only compiled operators take, or are results of the
            subgraph.
        why: Why the others stay in host memory.
    """

    keeps: dict[int, Keep]
    lazy: frozenset[int]
    why: dict[Handle, str]


NOTHING = Keepable({}, frozenset(), {})


def keepable(info: SubgraphInfo, subgraphs: tuple[SubgraphInfo, ...]) -> Keepable:
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
    keeps: dict[int, Keep] = {}
    lazy: set[int] = set()
    for handle, operators in uses.items():
        reason = everywhere or why.get(handle)
        found = reason or _keep(info, handle, operators)
        if isinstance(found, str):
            why[handle] = found
        else:
            keeps[found.read] = found
            lazy |= {o.outputs[0] for o in operators if o.name == READ}
    return Keepable(keeps, frozenset(lazy), why)


def _keep(info: SubgraphInfo, handle: Handle, uses: list[OperatorInfo]) -> Keep | str:
    """One variable, by the operators that read it and assign to it, in order; or why not."""
    assigned = [o for o in uses if o.name == ASSIGN]
    if not assigned:
        return "nothing assigns to it here, and it is sent with each run"
    if len(assigned) > 1:
        return "it is assigned to several times in a run"
    (assign,) = assigned
    at = uses.index(assign)
    takers = {o.outputs[0]: [] for o in uses if o.name == READ}  # type: dict[int, list[OperatorInfo]]
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
    return Keep(handle, read[0], made, frozenset(o.index for o in takers[read[0]]))


def contents(what: Any) -> Any:
    """What is handed on between steps, with a `Held` as the array that it stands for.

    Raises:
        StateError, DeviceError: as `Held.array`.
    """
    return what.array() if isinstance(what, Held) else what


class Keeping(Protocol):
    """What `Lent` asks of a piece."""

    count: int

    def peek(self, handle: Handle) -> Array:
        """A copy of what it keeps."""
        ...


def lent(owner: Keeping, handle: Handle, like: Array) -> Held:
    """A `Held` of what a piece keeps now, in the form of an array."""
    at = owner.count

    def read() -> Array:
        if owner.count != at:
            raise StateError(f"{handle} has changed since it was read; this is a defect of tflgpu")
        return owner.peek(handle)

    return Held(handle, like.shape, like.dtype, read)
