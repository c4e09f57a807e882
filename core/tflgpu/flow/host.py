"""The operators that the host runs: variables, tables, texts, branches, loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.flow.cut import Known
from tflgpu.flow.loops import Loop
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
    handle_of,
    keeps_state,
    table_of,
)
from tflgpu.flow.program import FlowContext, Program
from tflgpu.flow.steps import Env, Given, HostStep, Told
from tflgpu.flow.store import DeviceVariable, Handle, VariableStore
from tflgpu.flow.tables import Fill, Find, MakeTable, Size
from tflgpu.flow.texts import plan_texts
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.bodies import CONTROL, STATE
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


class HostOperators:
    """The `tflgpu.flow.program.Host` of all operators in `tflgpu.flow.operators`."""

    def __init__(self) -> None:
        self._keeping: dict[tuple[int, ...], bool] = {}  # by the subgraphs that are run

    def may_pass(
        self, shared: FlowContext, known: Known, operator: OperatorInfo, waiting: OperatorInfo
    ) -> bool:
        """Whether not both see or change the same state."""
        if not (self._sees_state(shared, operator) and self._sees_state(shared, waiting)):
            return True
        if operator.name in (READ, ASSIGN) and waiting.name in (READ, ASSIGN):
            mine, other = (known.handles.get(o.inputs[0]) for o in (operator, waiting))
            both_read = operator.name == waiting.name == READ
            return mine is not None and other is not None and (both_read or mine != other)
        return {operator.name, waiting.name} <= {FIND, SIZE}

    def _sees_state(self, shared: FlowContext, operator: OperatorInfo) -> bool:
        if operator.name in (VAR_HANDLE, TABLE):
            return False
        is_state = operator.name in STATE or operator.name == CALL_ONCE
        return is_state or self._keeps_state(shared, called(operator))

    def _keeps_state(self, shared: FlowContext, bodies: tuple[int, ...]) -> bool:
        if bodies not in self._keeping:
            self._keeping[bodies] = keeps_state(shared.model.subgraphs, bodies)
        return self._keeping[bodies]

    def plan(
        self,
        shared: FlowContext,
        known: Known,
        operator: OperatorInfo,
        info: SubgraphInfo,
        given: Sequence[Told],
    ) -> HostStep:
        """The step that runs an operator whose operands are known."""
        inputs, outputs = operator.inputs, operator.outputs
        if operator.is_custom:
            return plan_texts(shared, known, operator, info, given)
        if operator.name == VAR_HANDLE:
            handle = handle_of(operator)
            return MakeHandle(outputs[0], handle, (handle,))
        if operator.name in (TABLE, IMPORT, FIND, SIZE):
            return _plan_table(shared, operator, info, given)
        if operator.texts and operator.name not in CONTROL:
            return plan_texts(shared, known, operator, info, given)
        if operator.name == READ:
            (handle,) = _handles(given, operator)
            dtype = info.tensors[outputs[0]].dtype
            return Read(
                outputs[0],
                handle,
                shared.store,
                dtype,
                (known.variables.get(handle),),
                is_lazy=outputs[0] in known.lazy,
            )
        if operator.name == ASSIGN:
            (handle,) = _handles(given[:1], operator)
            if isinstance(given[1], tuple):
                known.variables[handle] = given[1]
            return AssignVariable(inputs[1], handle, shared.store)
        bodies = [shared.program(number) for number in called(operator)]
        if self._keeps_state(shared, called(operator)):
            known.variables.clear()
        if operator.name == CALL_ONCE:
            return CallOnce(bodies[0], shared.store)
        where = f"operator {operator.index} ({operator.name})"
        if operator.name in (IF, CASE):
            _check_one(where, given[0], "bool" if operator.name == IF else "number")
            results = _results_of_all(bodies, given[1:])
            chosen = _decided if operator.name == IF else _chosen
            return Branch(where, inputs, outputs, tuple(bodies), chosen, results)
        assert operator.name == WHILE
        cond, body = bodies
        _check_one(where, cond.results(given)[0])
        loop = Loop(shared, operator.index, where, inputs, outputs, cond, body, _decision, given)
        loop.prepare([known.constants.get(i, info.tensors[i].data) for i in inputs])
        return loop


def _results_of_all(bodies: Sequence[Program], given: Sequence[Told]) -> tuple[Told, ...]:
    """The results of a branch, as far as all of its sides agree. Compiles them.

    A side that does not work out at these shapes may be one that is never taken at them: guarding
    against such shapes is what many branches are for. Running it says what is wrong.

    Raises:
        ModelError: no side works out at these shapes.
        UnsupportedError: no backend runs an operator of a branch.
    """
    told: list[Sequence[Told]] = []
    failed: list[ModelError] = []
    for body in bodies:
        try:
            told.append(body.results(given))
            body.prepare(given)
        except ModelError as error:
            failed.append(error)
    if not told:
        raise failed[0]
    return tuple(a if all(a == b for b in rest) else None for a, *rest in zip(*told, strict=True))


def _plan_table(
    shared: FlowContext, operator: OperatorInfo, info: SubgraphInfo, given: Sequence[Told]
) -> HostStep:
    inputs, outputs, store = operator.inputs, operator.outputs, shared.store
    where = f"operator {operator.index} ({operator.name})"
    if operator.name == TABLE:
        handle = table_of(operator)
        return MakeTable.of(where, outputs[0], handle, operator.fields, store)
    (handle,) = _handles(given[:1], operator, "table")
    if operator.name == SIZE:
        return Size(outputs[0], handle, store)
    types = info.tensors[inputs[1]].dtype, info.tensors[inputs[2]].dtype
    keys, values = given[1:]
    if operator.name == IMPORT:
        if keys != values:
            raise ModelError(f"{where}: keys {keys} and values {values} differ in shape")
        return Fill(inputs[1], inputs[2], handle, store, types)
    assert isinstance(values, tuple)
    if not math.prod(values):
        raise ModelError(f"{where}: its default has shape {list(values)}, and no element")
    return Find(where, inputs[1], inputs[2], outputs[0], handle, store, types, (keys,))


def _handles(given: Sequence[Told], operator: OperatorInfo, kind: str = "variable") -> list[Handle]:
    found = [g for g in given if isinstance(g, Handle)]
    assert len(found) == len(given)  # by `check_bodies` they are resources
    for handle in found:
        if handle.kind != kind:
            raise ModelError(
                f"operator {operator.index} ({operator.name}) takes a {kind}, not {handle}"
            )
    return found


def _check_one(where: str, shape: Told, what: str = "bool") -> None:
    """Check that the deciding tensor has one element, as far as its shape is known.

    Raises:
        ModelError: it is not.
    """
    if isinstance(shape, tuple) and math.prod(shape) != 1:
        raise ModelError(f"{where}: what decides must be one {what}, but has shape {list(shape)}")


def _decision(where: str, flag: Given) -> bool:
    assert isinstance(flag, np.ndarray)
    _check_one(where, flag.shape)
    return bool(flag.reshape(())[()])


def _decided(where: str, flag: Given, count: int) -> int:
    return 0 if _decision(where, flag) else 1


def _chosen(where: str, index: Given, count: int) -> int:
    """Of a number that is none of a branch's, the last one."""
    assert isinstance(index, np.ndarray)
    _check_one(where, index.shape, "number")
    number = int(index.reshape(())[()])
    return number if 0 <= number < count else count - 1


def _kept(given: Given) -> Given:
    """A copy of an array, which no later run of a subgraph changes; a handle itself."""
    return np.array(given) if isinstance(given, np.ndarray) else given


@attrs.frozen
class MakeHandle:
    """VAR_HANDLE."""

    output: int
    handle: Handle
    results: tuple[Told, ...]

    def __call__(self, env: Env) -> None:
        """Name the variable."""
        env[self.output] = self.handle


@attrs.frozen(eq=False)
class Read:
    """READ_VARIABLE."""

    output: int
    handle: Handle
    store: VariableStore
    dtype: DType
    results: tuple[Told, ...]
    is_lazy: bool = False

    def __call__(self, env: Env) -> None:
        """Give what is there, or where it is; an assignment replaces it."""
        look = self.store.peek if self.is_lazy else self.store.read
        env[self.output] = look(self.handle, self.dtype)


@attrs.frozen(eq=False)
class AssignVariable:
    """ASSIGN_VARIABLE."""

    value: int
    handle: Handle
    store: VariableStore
    results: tuple[Told, ...] = ()

    def __call__(self, env: Env) -> None:
        """Keep a copy, where no piece has it already."""
        value = env[self.value]
        if not isinstance(value, DeviceVariable):
            self.store.assign(self.handle, value)
        elif value.handle != self.handle:
            self.store.assign(self.handle, value.array())


@attrs.frozen(eq=False)
class CallOnce:
    """CALL_ONCE."""

    body: Program
    store: VariableStore
    results: tuple[Told, ...] = ()

    def __call__(self, env: Env) -> None:
        """Run the subgraph where that has not been done."""
        if self.store.first_call(self.body.number):
            self.body.run(())


@attrs.frozen(eq=False)
class Branch:
    """IF and STABLEHLO_CASE."""

    where: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[Program, ...]
    which: Callable[[str, Given, int], int]
    results: tuple[Told, ...]

    def __call__(self, env: Env) -> None:
        """Run one of them."""
        flag, *given = (env[i] for i in self.inputs)
        body = self.bodies[self.which(self.where, flag, len(self.bodies))]
        for i, made in zip(self.outputs, body.run(given), strict=True):
            env[i] = _kept(made)
