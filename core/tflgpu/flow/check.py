"""Checks the subgraphs that an operator runs before any of them is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.flow.cut import check_order
from tflgpu.flow.operators import (
    ASSIGN,
    CALL_ONCE,
    CASE,
    FIND,
    IF,
    IMPORT,
    READ,
    SIZE,
    TABLE,
    VAR_HANDLE,
    WHILE,
    called,
    reached,
)
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo

_Types = list[DType]

#: What operators of variables and tables take and give; None where that is not the same for all.
_FORMS: Mapping[str, tuple[_Types | None, _Types | None]] = {
    VAR_HANDLE: ([], [DType.RESOURCE]),
    READ: ([DType.RESOURCE], None),
    ASSIGN: (None, []),
    TABLE: ([], [DType.RESOURCE]),
    IMPORT: (None, []),
    FIND: (None, None),
    SIZE: ([DType.RESOURCE], [DType.I64]),
}


def check_bodies(subgraphs: tuple[SubgraphInfo, ...], start: int) -> None:
    """Check all that running subgraph ``start`` may lead to, and the order of its operators.

    Raises:
        ModelError: a subgraph does not take or give what the operator that runs it has, or as
            `check_order`.
    """
    for number in reached(subgraphs, [start]):
        for operator in subgraphs[number].operators:
            if run_by_host(operator) and not operator.is_custom:
                _Checking(subgraphs, number, operator).check()
    check_order(subgraphs[start])


class _Checking:
    """One operator with the subgraphs that it runs."""

    def __init__(
        self, subgraphs: Sequence[SubgraphInfo], number: int, operator: OperatorInfo
    ) -> None:
        self.subgraphs = subgraphs
        self.info = subgraphs[number]
        self.operator = operator
        self.where = f"subgraph {number}, operator {operator.index} ({operator.name})"

    def check(self) -> None:
        """Raise a ModelError where something does not fit."""
        operator = self.operator
        if any(i < 0 for i in operator.inputs):
            raise ModelError(f"{self.where}: an operand is absent, and it has no optional ones")
        given, made = self._types(operator.inputs), self._types(operator.outputs)
        bodies = called(operator)
        if operator.name == IF:
            self._condition(given[:1], "its first operand")
            for body, which in zip(bodies, ("then", "else"), strict=True):
                self._takes(body, which, given[1:])
                self._gives(body, which, made)
        elif operator.name == CASE:
            if not bodies:
                self._fail("it has no branches")
            if given[:1] != [DType.I32]:
                self._fail(
                    f"its first operand chooses a branch and must be i32, not {_listed(given[:1])}"
                )
            for number, body in enumerate(bodies):
                self._takes(body, f"branch {number}", given[1:])
                self._gives(body, f"branch {number}", made)
        elif operator.name == WHILE:
            cond, body = bodies
            self._takes(cond, "condition", given)
            self._condition(self._results(cond), f"the result of its condition, subgraph {cond},")
            self._takes(body, "body", given)
            self._gives(body, "body", given)
            self._same(made, given, "its results", "its operands")
        elif operator.name == CALL_ONCE:
            self._takes(bodies[0], "subgraph", [])
            self._gives(bodies[0], "subgraph", [])
        elif operator.name in _FORMS:
            self._check_form(given, made)

    def _check_form(self, given: _Types, made: _Types) -> None:
        """Check an operator that names, reads or changes a variable or a table."""
        name = self.operator.name
        takes, gives = _FORMS[name]
        if takes is not None:
            self._same(given, takes, "its operands", "what it takes")
        elif name == ASSIGN:
            if len(given) != 2 or given[0] is not DType.RESOURCE or not given[1].has_numpy:
                self._fail(f"its operands are {_listed(given)}, not a variable and a tensor")
        else:
            self._table(given, f"a table, keys and {'values' if name == IMPORT else 'a default'}")
        if gives is not None:
            self._same(made, gives, "its results", "what it makes")
        elif name == FIND:
            self._same(made, given[2:], "its results", "what it gives where there is no such key")
        elif len(made) != 1 or not made[0].has_numpy:
            self._fail(f"its results are {_listed(made)}, not one tensor of numbers")

    def _table(self, given: _Types, what: str) -> None:
        pairs = ([DType.I64, DType.STRING], [DType.STRING, DType.I64])
        if given[:1] != [DType.RESOURCE] or given[1:] not in pairs:
            self._fail(
                f"its operands are {_listed(given)}, not {what}; one of these is i64, the other "
                "texts"
            )

    def _condition(self, types: _Types, what: str) -> None:
        if types != [DType.BOOL]:
            self._fail(f"{what} decides what runs and must be one bool, but is {_listed(types)}")

    def _takes(self, body: int, which: str, given: _Types) -> None:
        wanted = self._types(self.subgraphs[body].inputs, body)
        self._same(
            wanted, given, f"the inputs of its {which}, subgraph {body},", "what it is given"
        )

    def _gives(self, body: int, which: str, wanted: _Types) -> None:
        made = self._results(body)
        self._same(made, wanted, f"the outputs of its {which}, subgraph {body},", "what is wanted")

    def _results(self, body: int) -> _Types:
        return self._types(self.subgraphs[body].outputs, body)

    def _types(self, indices: Sequence[int], body: int | None = None) -> _Types:
        tensors = (self.info if body is None else self.subgraphs[body]).tensors
        return [tensors[i].dtype for i in indices]

    def _same(self, found: _Types, wanted: _Types, what: str, other: str) -> None:
        if found != wanted:
            self._fail(f"{what} are {_listed(found)}, but {other} is {_listed(wanted)}")

    def _fail(self, message: str) -> None:
        name = quoted(self.info.name)
        raise ModelError(f"{self.where}: {message} (subgraph {name})")


def _listed(types: _Types) -> str:
    return ", ".join(t.value for t in types[:8]) + (", ..." if len(types) > 8 else "") or "none"
