"""What a delegate takes, as data: a rule for each op, and what holds for all of them.

The tables are JSON files beside this one. They are about ops of another program, by the names of the
file format; what tflgpu itself knows of ops stands in `tflgpu.ops`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.profiles.checks import CHECKS
from tflgpu.profiles.seen import Seen, shaped

_Bounds = tuple[int, int]


def _bounds(value: Sequence[int] | None) -> _Bounds | None:
    return None if value is None else (int(value[0]), int(value[1]))


def _types(names: Sequence[str]) -> frozenset[DType]:
    return frozenset(DType(name) for name in names)


def _lists_at(given: Mapping[str, list[Any]]) -> dict[int, list[Any]]:
    return {int(at): value for at, value in given.items()}


def _types_at(given: Mapping[str, Sequence[str]]) -> dict[int, frozenset[DType]]:
    return {int(at): _types(names) for at, names in given.items()}


def _pairs(given: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((first, second) for first, second in given)


def _checks(names: Sequence[str]) -> tuple[Callable[[Seen], str], ...]:
    return tuple(CHECKS[name] for name in names)


@attrs.frozen(kw_only=True, eq=False)
class OpRule:
    """What a delegate checks of an op. What is left out is not checked.

    Attributes:
        ops: The ops that it is about; ``custom`` ones by their custom code.
        version: The highest version that is taken; None for any.
        runtime, constants, inputs, outputs: Least and most operands that are computed, that are
            constant, of both together, and results.
        activation: The fused activation must be one that the delegate knows.
        fields: Values that an option may have.
        above: Options that must be above a number.
        not_both: Two options of which one at most may be on.
        runtime_at, constant_at: Operands that must be computed, or constant where they are there.
        constant_shapes: Shapes that a constant operand may have.
        positive_at: Constant operands of which every number must be above 0.
        input_ranks, input_types: Of an operand, where it is there.
        type_pairs: Types of the first operand and of the first result that go together.
        max_rank: Of its tensors, where less is taken than of others.
        also_inputs, also_outputs: Types besides those that every op may have.
        boolean_for: A result of type bool is only taken where one of these ops, alone, reads it.
        quantized: Only taken where quantized models are.
        checks: What is more than a table can say.
        flaw, flawed: What goes wrong although it is taken: always, or where an option is on.
    """

    ops: tuple[str, ...] = attrs.field(converter=tuple)
    custom: bool = False
    version: int | None = None
    runtime: _Bounds | None = attrs.field(default=None, converter=_bounds)
    constants: _Bounds | None = attrs.field(default=None, converter=_bounds)
    inputs: _Bounds | None = attrs.field(default=None, converter=_bounds)
    outputs: _Bounds | None = attrs.field(default=None, converter=_bounds)
    activation: bool = False
    fields: Mapping[str, Sequence[object]] = attrs.field(factory=dict)
    above: Mapping[str, float] = attrs.field(factory=dict)
    not_both: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    runtime_at: tuple[int, ...] = attrs.field(default=(), converter=tuple)
    constant_at: tuple[int, ...] = attrs.field(default=(), converter=tuple)
    constant_shapes: Mapping[int, list[list[int]]] = attrs.field(factory=dict, converter=_lists_at)
    positive_at: tuple[int, ...] = attrs.field(default=(), converter=tuple)
    input_ranks: Mapping[int, list[int]] = attrs.field(factory=dict, converter=_lists_at)
    input_types: Mapping[int, frozenset[DType]] = attrs.field(factory=dict, converter=_types_at)
    type_pairs: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_pairs)
    max_rank: int | None = None
    also_inputs: frozenset[DType] = attrs.field(default=(), converter=_types)
    also_outputs: frozenset[DType] = attrs.field(default=(), converter=_types)
    boolean_for: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    quantized: bool = False
    checks: tuple[Callable[[Seen], str], ...] = attrs.field(default=(), converter=_checks)
    flaw: str = ""
    flawed: Mapping[str, str] = attrs.field(factory=dict)

    def refusal(self, seen: Seen) -> str:
        """Why an operator of this op is refused, "" where it is not."""
        if self.version is not None and seen.op.version > self.version:
            return f"version {seen.op.version} of it; the highest that is taken is {self.version}"
        return (
            self._counts(seen)
            or self._options(seen)
            or self._operands(seen)
            or self._boolean(seen)
            or next((why for why in (check(seen) for check in self.checks) if why), "")
        )

    def flaws(self, seen: Seen) -> list[str]:
        """What goes wrong with an operator that is taken."""
        found = [self.flaw] if self.flaw else []
        return found + [text for field, text in self.flawed.items() if seen.number(field)]

    def _counts(self, seen: Seen) -> str:
        present = [t for t in seen.inputs if t is not None]
        for what, bounds, counted in (
            ("operands that are computed", self.runtime, seen.runtime),
            ("constant operands", self.constants, seen.constants),
            ("operands", self.inputs, present),
            ("results", self.outputs, seen.outputs),
        ):
            if bounds is not None and not bounds[0] <= len(counted) <= bounds[1]:
                least, most = bounds
                taken = str(least) if least == most else f"{least} to {most}"
                return f"{len(counted)} {what}; taken are {taken}"
        return ""

    def _options(self, seen: Seen) -> str:
        for field, values in self.fields.items():
            if field in seen.op.fields and seen.op.fields[field] not in values:
                taken = " or ".join(map(str, values)) if len(values) < 4 else "some others"
                return f"{field} is {seen.op.fields[field]}; taken is {taken}"
        for field, least in self.above.items():
            if field in seen.op.fields and seen.number(field) <= least:
                return f"{field} is {seen.op.fields[field]}; it must be above {least}"
        if self.not_both and all(seen.number(field) for field in self.not_both):
            return f"{' and '.join(self.not_both)} are both on"
        return ""

    def _operands(self, seen: Seen) -> str:
        for at in self.runtime_at:
            tensor = seen.input(at)
            if tensor is not None and tensor.is_constant:
                return f"operand {at} ({shaped(tensor)}) is constant"
        for at in self.constant_at:
            tensor = seen.input(at)
            if tensor is not None and not tensor.is_constant:
                return f"operand {at} ({shaped(tensor)}) is computed; taken is a constant"
        for at, shapes in self.constant_shapes.items():
            tensor = seen.input(at)
            if tensor is not None and list(tensor.shape) not in shapes:
                taken = " or ".join("x".join(map(str, s)) for s in shapes)
                return f"operand {at} ({shaped(tensor)}) has a shape other than {taken}"
        for at, ranks in self.input_ranks.items():
            tensor = seen.input(at)
            if tensor is not None and len(tensor.shape) not in ranks:
                taken = " or ".join(map(str, ranks))
                return f"operand {at} ({shaped(tensor)}) has rank {len(tensor.shape)}; taken is {taken}"
        for at, types in self.input_types.items():
            tensor = seen.input(at)
            if tensor is not None and tensor.dtype not in types:
                taken = " or ".join(sorted(t.value for t in types))
                return f"operand {at} ({shaped(tensor)}) is {tensor.dtype.value}; taken is {taken}"
        for at in self.positive_at:
            tensor = seen.input(at)
            if tensor is not None and tensor.data is not None and np.any(tensor.data <= 0):
                return f"operand {at} ({shaped(tensor)}) has numbers that are not above 0"
        return ""

    def _boolean(self, seen: Seen) -> str:
        first, result = seen.input(0), seen.outputs[0] if seen.outputs else None
        if self.type_pairs and first is not None and result is not None:
            pair = first.dtype.value, result.dtype.value
            if pair not in self.type_pairs:
                return f"from {pair[0]} to {pair[1]} is not taken"
        if not self.boolean_for or result is None or result.dtype is not DType.BOOL:
            return ""
        readers = seen.around.readers.get(result.index, ())
        if len(readers) == 1 and readers[0].name in self.boolean_for:
            return ""
        return f"its result is of type bool, which is only taken where one {' or '.join(self.boolean_for)} alone reads it"


@attrs.frozen(kw_only=True, eq=False)
class RuleTable:
    """What a delegate takes.

    Attributes:
        rules: By op; custom ops by their custom code.
        dropped: Ops that are refused, with a reason of their own.
        max_rank: Of tensors that are not constant.
        types: Of tensors that are not constant, whatever the op.
        quantized_types: The same where quantized models are allowed.
        activations: Fused activations that are known, by their code in the file format.
        half_constants: The op whose 16-bit constants are read as they are; "" for none.
        max_partitions: How many parts of a graph go to the GPU, the largest by number of operators.
        sources: Where the rules are from.
    """

    rules: Mapping[str, OpRule]
    dropped: Mapping[str, str]
    max_rank: int
    types: frozenset[DType]
    quantized_types: frozenset[DType]
    activations: frozenset[int]
    half_constants: str
    max_partitions: int
    sources: tuple[str, ...]

    def refusal(self, seen: Seen, *, quantized: bool = True) -> str:
        """Why an operator is refused, "" where it is not."""
        op = seen.op
        rule = self.rules.get(op.name)
        if rule is None or rule.custom != op.is_custom:
            kind = "custom op" if op.is_custom else "op"
            return self.dropped.get(op.name, f"the {kind} {op.name} is not taken")
        if rule.quantized and not quantized:
            return "quantized models are not allowed"
        return (
            rule.refusal(seen) or self._activation(rule, seen) or self._gate(rule, seen, quantized)
        )

    def _activation(self, rule: OpRule, seen: Seen) -> str:
        code = int(seen.number("fused_activation_function"))
        known = not rule.activation or code in self.activations
        return "" if known else f"its fused activation (code {code}) is not known"

    def _gate(self, rule: OpRule, seen: Seen, quantized: bool) -> str:
        types = self.types | (self.quantized_types if quantized else frozenset())
        most = self.max_rank if rule.max_rank is None else rule.max_rank
        for tensors, allowed in (
            (seen.runtime, types | rule.also_inputs),
            (seen.outputs, types | rule.also_outputs),
        ):
            for tensor in tensors:
                if len(tensor.shape) > most:
                    return f"{shaped(tensor)} has rank {len(tensor.shape)}; the most is {most}"
                if tensor.dtype not in allowed:
                    return f"{shaped(tensor)}: the type is not taken here"
        return ""


@cache
def table(name: str) -> RuleTable:
    """A shipped table, by its file's name."""
    given = _read(name)
    rows = _rows(given)
    base = _read(given["extends"]) if "extends" in given else {}
    whole = {**base, **given}
    return RuleTable(
        rules={op: OpRule(**row) for op, row in rows.items()},
        dropped=given.get("drop", {}),
        max_rank=whole["max_rank"],
        types=_types(whole["types"]),
        quantized_types=_types(whole["quantized_types"]),
        activations=frozenset(whole["activations"]),
        half_constants=whole["half_constants"],
        max_partitions=whole["max_partitions"],
        sources=(*given["sources"], *base.get("sources", ())),
    )


def _rows(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By op; with what a table takes over from the one that it extends, changed as it says."""
    rows: dict[str, dict[str, Any]] = {}
    if "extends" in given:
        rows = _rows(_read(given["extends"]))
        for op in given.get("drop", {}):
            del rows[op]
        for op, version in given.get("versions", {}).items():
            rows[op] |= {"version": version}
        for op, change in given.get("changes", {}).items():
            rows[op] |= change
        lost = ["boolean_for"] * given.get("boolean_results", False)
        lost += ["flaw", "flawed"] * given.get("drop_flaws", False)
        rows = {op: {k: v for k, v in row.items() if k not in lost} for op, row in rows.items()}
    for row in given["rules"]:
        for op in row["ops"]:
            if op in rows:
                raise ValueError(f"there are two rules for {op}")
            rows[op] = {**row, "ops": [op]}
    return rows


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files(__package__).joinpath(name).read_text("utf-8"))
    return content
