"""The rules of another delegate, as data: `delegates.toml` has a rule for each op, by the names of
the file format, and general rules. The ops themselves are defined in `tflgpu.ops`.

A rule's keys are what it checks (`CHECKS`, in this order, and those named in ``checks``), and

    ops, custom             the ops that it is about; custom ones by their custom code
    activation              the fused activation must be one that the delegate knows
    max_rank                of its tensors, where less is taken than of others
    also_inputs, also_outputs    types besides those that every op may have
    quantized               only taken where quantized models are
    flaw, flawed            what goes wrong although it is taken: always, or where an option is on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.profiles.checks import NAMED_CHECKS
from tflgpu.profiles.file_operator import FileOperator, shaped
from tflgpu.tflite.model_file import TensorInfo

#: Keys of a rule and their values.
Rule = Mapping[str, Any]
#: (operator, value of the rule's key) -> why the operator is refused, "" where it is not.
RuleCheck = Callable[[FileOperator, Any], str]


def _version(operator: FileOperator, most: int) -> str:
    """The highest version that is taken."""
    if operator.info.version <= most:
        return ""
    return f"version {operator.info.version} of it; the highest that is taken is {most}"


def _number_of(what: str, counted: Callable[[FileOperator], Sequence[object]]) -> RuleCheck:
    """Least and most."""

    def check(operator: FileOperator, bounds: Sequence[int]) -> str:
        (least, most), count = bounds, len(counted(operator))
        if least <= count <= most:
            return ""
        return f"{count} {what}; taken are {least if least == most else f'{least} to {most}'}"

    return check


def _fields(operator: FileOperator, taken: Mapping[str, Sequence[object]]) -> str:
    """Values that an option may have."""
    for field, values in taken.items():
        if field in operator.info.fields and operator.info.fields[field] not in values:
            named = " or ".join(map(str, values)) if len(values) < 4 else "some others"
            return f"{field} is {operator.info.fields[field]}; taken is {named}"
    return ""


def _above(operator: FileOperator, limits: Mapping[str, float]) -> str:
    """Options that must be above a number."""
    for field, least in limits.items():
        if field in operator.info.fields and operator.number(field) <= least:
            return f"{field} is {operator.info.fields[field]}; it must be above {least}"
    return ""


def _not_both(operator: FileOperator, fields: Sequence[str]) -> str:
    """Options of which one at most may be on."""
    on = all(operator.number(field) for field in fields)
    return f"{' and '.join(fields)} are both on" if on else ""


def _operands(wrong: Callable[[TensorInfo, Any], str]) -> RuleCheck:
    """Operands by position, where they are there; with what is asked of each."""

    def check(operator: FileOperator, given: Sequence[int] | Mapping[str, Any]) -> str:
        wanted = given if isinstance(given, Mapping) else dict.fromkeys(given)
        for at, value in wanted.items():
            tensor = operator.input(int(at))
            why = "" if tensor is None else wrong(tensor, value)
            if tensor is not None and why:
                return f"operand {at} ({shaped(tensor)}) {why}"
        return ""

    return check


def _shape(tensor: TensorInfo, shapes: Sequence[Sequence[int]]) -> str:
    taken = " or ".join("x".join(map(str, s)) for s in shapes)
    return "" if list(tensor.shape) in shapes else f"has a shape other than {taken}"


def _rank(tensor: TensorInfo, ranks: Sequence[int]) -> str:
    if len(tensor.shape) in ranks:
        return ""
    return f"has rank {len(tensor.shape)}; taken is {' or '.join(map(str, ranks))}"


def _type(tensor: TensorInfo, types: Sequence[str]) -> str:
    if tensor.dtype.value in types:
        return ""
    return f"is {tensor.dtype.value}; taken is {' or '.join(sorted(types))}"


def _positive(tensor: TensorInfo, _: None) -> str:
    below = tensor.data is not None and np.any(tensor.data <= 0)
    return "has numbers that are not above 0" if below else ""


def _type_pairs(operator: FileOperator, pairs: Sequence[Sequence[str]]) -> str:
    """Types of the first operand and of the first result that go together."""
    first, result = operator.input(0), operator.outputs[0] if operator.outputs else None
    if first is None or result is None or [first.dtype.value, result.dtype.value] in pairs:
        return ""
    return f"from {first.dtype.value} to {result.dtype.value} is not taken"


def _boolean_for(operator: FileOperator, ops: Sequence[str]) -> str:
    """A result of type bool is only taken where one of these ops, alone, reads it."""
    result = operator.outputs[0] if operator.outputs else None
    if result is None or result.dtype is not DType.BOOL:
        return ""
    readers = operator.subgraph.readers.get(result.index, ())
    if len(readers) == 1 and readers[0].name in ops:
        return ""
    return (
        "its result is of type bool, which is only taken where one "
        f"{' or '.join(ops)} alone reads it"
    )


#: By a rule's key, in the order in which they are made.
CHECKS: Mapping[str, RuleCheck] = {
    "version": _version,
    "runtime": _number_of("operands that are computed", lambda op: op.runtime),
    "constants": _number_of("constant operands", lambda op: op.constants),
    "inputs": _number_of("operands", lambda op: [t for t in op.inputs if t is not None]),
    "outputs": _number_of("results", lambda op: op.outputs),
    "fields": _fields,
    "above": _above,
    "not_both": _not_both,
    "runtime_at": _operands(lambda tensor, _: "is constant" if tensor.is_constant else ""),
    "constant_at": _operands(
        lambda tensor, _: "" if tensor.is_constant else "is computed; taken is a constant"
    ),
    "constant_shapes": _operands(_shape),
    "input_ranks": _operands(_rank),
    "input_types": _operands(_type),
    "positive_at": _operands(_positive),
    "type_pairs": _type_pairs,
    "boolean_for": _boolean_for,
    "checks": lambda op, names: next(filter(None, (NAMED_CHECKS[n](op) for n in names)), ""),
}
_OTHER_KEYS = frozenset(
    [
        "ops",
        "custom",
        "activation",
        "max_rank",
        "also_inputs",
        "also_outputs",
        "quantized",
        "flaw",
        "flawed",
    ]
)


@attrs.frozen(kw_only=True, eq=False)
class RuleTable:
    """The operators that a delegate takes.

    Attributes:
        rules: By op; custom ops by their custom code.
        dropped: Ops that are refused, with a reason of their own.
        max_rank: Of tensors that are not constant.
        types: Of tensors that are not constant, for every op.
        quantized_types: The same where quantized models are allowed.
        activations: Fused activations that are known, by their code in the file format.
        half_constants: The op whose 16-bit constants are read as they are; "" for none.
        max_partitions: How many parts of a graph go to the GPU, the largest by number of operators.
        sources: Where the rules are from.
    """

    rules: Mapping[str, Rule]
    dropped: Mapping[str, str]
    max_rank: int
    types: Sequence[str]
    quantized_types: Sequence[str]
    activations: Sequence[int]
    half_constants: str
    max_partitions: int
    sources: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        """Refuse a key or a check that has been mistyped: it would check nothing."""
        for op, rule in self.rules.items():
            wrong = set(rule) - CHECKS.keys() - _OTHER_KEYS
            wrong |= set(rule.get("checks", ())) - NAMED_CHECKS.keys()
            if wrong:
                raise ValueError(f"the rule for {op} has unknown keys or checks: {sorted(wrong)}")

    def refusal(self, operator: FileOperator, *, quantized: bool = True) -> str:
        """Why an operator is refused, "" where it is not."""
        op = operator.info
        rule = self.rules.get(op.name)
        if rule is None or rule.get("custom", False) != op.is_custom:
            kind = "custom op" if op.is_custom else "op"
            return self.dropped.get(op.name, f"the {kind} {op.name} is not taken")
        if rule.get("quantized") and not quantized:
            return "quantized models are not allowed"
        answers = (check(operator, rule[key]) for key, check in CHECKS.items() if key in rule)
        return next(filter(None, answers), "") or self._general(rule, operator, quantized)

    def flaws(self, operator: FileOperator) -> list[str]:
        """The defects that a delegate has with an operator that it takes."""
        rule = self.rules[operator.info.name]
        found = [text for field, text in rule.get("flawed", {}).items() if operator.number(field)]
        return [rule["flaw"], *found] if "flaw" in rule else found

    def _general(self, rule: Rule, operator: FileOperator, quantized: bool) -> str:
        """The first of the general rules that refuses an operator."""
        code = int(operator.number("fused_activation_function"))
        if rule.get("activation") and code not in self.activations:
            return f"its fused activation (code {code}) is not known"
        types = [*self.types, *(self.quantized_types if quantized else ())]
        most = rule.get("max_rank", self.max_rank)
        for tensors, also in (
            (operator.runtime, "also_inputs"),
            (operator.outputs, "also_outputs"),
        ):
            for tensor in tensors:
                if len(tensor.shape) > most:
                    return f"{shaped(tensor)} has rank {len(tensor.shape)}; the most is {most}"
                if tensor.dtype.value not in (*types, *rule.get(also, ())):
                    return f"{shaped(tensor)}: the type is not taken here"
        return ""
