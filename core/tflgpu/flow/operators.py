"""The operators that the host runs between compiled pieces, and the subgraphs that they run."""

from __future__ import annotations

from collections.abc import Iterable

from tflgpu.flow.store import Handle
from tflgpu.tflite.bodies import CONTROL, STATE
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo

IF, WHILE, CALL_ONCE, CASE = CONTROL
VAR_HANDLE, READ, ASSIGN = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"
TABLE, IMPORT = "HASHTABLE", "HASHTABLE_IMPORT"
FIND, SIZE = "HASHTABLE_FIND", "HASHTABLE_SIZE"


def called(operator: OperatorInfo) -> tuple[int, ...]:
    """The subgraphs that it runs."""
    if operator.is_custom:
        return ()
    found: list[int] = []
    for name in CONTROL.get(operator.name, ()):
        value = operator.fields[name]
        found += [int(n) for n in value] if isinstance(value, tuple) else [int(str(value))]
    return tuple(found)


def handle_of(operator: OperatorInfo) -> Handle:
    """The handle that a VAR_HANDLE makes."""
    return Handle(str(operator.fields["container"]), str(operator.fields["shared_name"]))


def table_of(operator: OperatorInfo) -> Handle:
    """The handle that a HASHTABLE makes."""
    return Handle("", str(operator.fields["table_id"]), "table")


def reached(subgraphs: tuple[SubgraphInfo, ...], start: Iterable[int]) -> set[int]:
    """Subgraphs that may run when those of ``start`` do, they among them."""
    found, ahead = set[int](), list(start)
    while ahead:
        number = ahead.pop()
        if number not in found:
            found.add(number)
            ahead += [i for o in subgraphs[number].operators for i in called(o)]
    return found


def keeps_state(subgraphs: tuple[SubgraphInfo, ...], start: Iterable[int]) -> bool:
    """Whether running them may read or change variables."""
    return any(
        o.name in STATE or o.name == CALL_ONCE
        for number in reached(subgraphs, start)
        for o in subgraphs[number].operators
    )
