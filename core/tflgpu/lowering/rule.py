"""Kernel rules: which generator serves which node on which device.

A kernel family is a module in `tflgpu.kernels` with a module-level ``RULES`` tuple (`KernelRule`
and `ElementwiseRule` values). Nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from tflgpu.errors.blame import Failed, shown
from tflgpu.ir.dtypes import DType
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_BUFFERS
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr
from tflgpu.lowering.choices import PREDICTED, Choices, problem_key
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import PluginFault, Unsupported
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.values import Factory, evolve, field, frozen

__all__ = [
    "ANY",
    "BOOLS",
    "BYTES",
    "FLOATS",
    "NUMBERS",
    "Accepts",
    "ElementwiseRule",
    "GroupRule",
    "KernelRule",
    "Maker",
    "PluginFault",
    "RowReduction",
    "Rule",
    "Site",
    "Unsupported",
    "refusal_of",
    "takes",
]

# What a rule and its callers may say no with is also found here.


def _within_budget(caps: DeviceCaps) -> DeviceCaps:
    if caps.max_bindings <= MAX_BUFFERS:
        return caps
    return evolve(caps, max_bindings=MAX_BUFFERS)


@frozen
class Site:
    """Where a node would run: what `KernelRule.accepts` may look at besides the node.

    ``caps.max_bindings`` is at most `budget.MAX_BUFFERS`, also on devices that allow more;
    ``integers`` is how whole numbers and booleans are stored; ``choices`` are those that were
    measured.
    """

    caps: DeviceCaps = field(converter=_within_budget)
    precision: Precision
    integers: IntegerStorage = IntegerStorage.WORDS
    choices: Choices = field(default=PREDICTED, eq=False)

    def joins(self, kind: str, nodes: Sequence[Node], *, predicted: bool) -> bool:
        """Whether nodes that one kernel could make are made by one: what was measured to be faster,
        else what is ``predicted``."""
        ways = ("joined", "apart") if predicted else ("apart", "joined")
        way, _ = self.choices.choose(
            lambda: problem_key(
                kind, (), self.precision.name, nodes, lambda value: value.dtype.value
            ),
            ways,
            ways.index,
            nodes,
        )
        return way == "joined"


@frozen
class RowReduction:
    """A node that makes one number of each row of operand 0, merged of all in the row.

    Attributes:
        merge: Of two numbers, in f32; their order must not matter but for rounding.
        identity: Merging it changes nothing; None where merging a number twice changes nothing
            either.
        scale: What the result is multiplied by; None for 1.
    """

    merge: Callable[[Builder, Expr, Expr], Expr]
    identity: float | None
    scale: float | None = None


#: None means yes; a string is the reason for no.
Accepts = Callable[[Node, Site], str | None]


#: Whether a kernel can make the rows of a node's operand 0 by a change.
TakesRows = Callable[[Node, RowChange, Site], bool]


def takes_no_rows(node: Node, change: RowChange, site: Site) -> bool:
    """A `TakesRows` that is no."""
    return False


def _always(node: Node, site: Site) -> str | None:
    return None


@frozen
class KernelRule:
    """A generator of kernels for an op.

    Attributes:
        op: Op name.
        name: Unique among the op's rules; shown in plans and profiles.
        build: Writes the node's kernels into a `Lowering`.
        accepts: None where the rule can serve a node there, else the reason why not.
        rank: Of the rules that accept, the highest rank is taken.
        fuses: Whether ``build`` writes output 0 through `Lowering.write`'s view exactly once
            per element, so that elementwise nodes may join its store.
        keeps_state: Whether ``build`` writes the new contents of the node's variables
            (`Lowering.new_state`). Nodes with variables go to no other rule.
        pointwise: Whether ``build`` makes each vector of a result by itself, at the place that
            `each_vector` gives, in one kernel a result, and reads operands by their views only:
            then a kernel that reads the result can do so in its loads
            (`tflgpu.compiler.join_reads`).
        reads_once: Whether ``build`` reads operands by their views only, and each element once, or
            a few times: then they can be computed in its loads. So it is of a pointwise rule.
        reads: How often ``build`` reads each vector of an operand, by its position, at most, where
            it reads whole vectors, by views only: they can be computed in its loads then, and to
            read others of the same rows costs nothing. 0 where it reads in another way.
        rows: What a node makes of each row, where that is all that it does, so that one kernel may
            go on with it (`tflgpu.compiler.join_rows`); None where it is not.
        row_change: What a node makes of each row, where kernels that have whole rows of the result
            in a workgroup may do it themselves (`tflgpu.compiler.join_row_changes`); None where
            that is not all.
        takes_rows: Whether ``build`` can make the rows of operand 0 so.
        beside: Whether ``build`` can make the product of another node, of the same operand 0, in
            the kernel of a node's whose chain reads it.
        stacks: Whether ``build`` can make the product of another node, of the same operand 0, as
            more outputs of a node's (`Lowering.stacked`), and is no slower; the last argument is
            whether it makes rows of the operand itself.
        owner: The plugin that brought it, "" for a shipped one. The registry fills it in.
    """

    op: str
    name: str
    build: Callable[[Lowering], None]
    accepts: Accepts = _always
    rank: int = 0
    fuses: bool = True
    keeps_state: bool = False
    pointwise: bool = False
    reads_once: bool = Factory(lambda self: self.pointwise, takes_self=True)
    reads: Callable[[Node, int], int] = lambda node, operand: 0
    rows: Callable[[Node], RowReduction | None] = lambda node: None
    row_change: Callable[[Node], RowChange | None] = lambda node: None
    takes_rows: TakesRows = takes_no_rows
    beside: Callable[[Node, Node, Site], bool] = lambda node, other, site: False
    stacks: Callable[[Node, Node, Site, bool], bool] = lambda node, other, site, rows: False
    owner: str = field(default="", eq=False)

    def __str__(self) -> str:
        return f"rule {self.name} for {self.op}"


@frozen
class ElementwiseRule:
    """An op that is one expression per element: has its own kernel, or joins another's store.
    ``owner`` is as in `KernelRule`."""

    op: str
    expr: ElementwiseExpr
    accepts: Accepts = _always
    owner: str = field(default="", eq=False)

    def __str__(self) -> str:
        return f"elementwise rule for {self.op}"


#: Gives the node that makes a value with exactly one reader; None where there
#: is none in the part, or where others need the value.
Maker = Callable[[Value], Union[Node, None]]


@frozen
class GroupRule:
    """A generator of kernels for several nodes, which are matched after partitioning.

    Attributes:
        op: Op name of the last node.
        name: As `KernelRule.name`.
        match: Asked of a node of that op: all nodes that one kernel would make, in the order in
            which they run, of which this one is the last; None where it does not serve them. The
            others come from the `Maker`, since their results must have no other reader.
        build: Writes the kernels: `Lowering.nodes` are those that were matched, the last of which
            has the result; ``low.read_value`` reads what the others read.
        rank: The group is taken where none of its nodes has a rule of higher rank.
        fuses, owner: As those of `KernelRule`.
    """

    op: str
    name: str
    match: Callable[[Node, Maker, Site], Sequence[Node] | None]
    build: Callable[[Lowering], None]
    rank: int = 0
    fuses: bool = True
    owner: str = field(default="", eq=False)

    def __str__(self) -> str:
        return f"group rule {self.name} for {self.op}"

    def as_kernel_rule(self) -> KernelRule:
        """The rule that makes the kernels, once the nodes are known."""
        return KernelRule(
            self.op, self.name, self.build, rank=self.rank, fuses=self.fuses, owner=self.owner
        )


Rule = Union[KernelRule, ElementwiseRule, GroupRule]


def refusal_of(rule: KernelRule | ElementwiseRule, node: Node, site: Site) -> str | None:
    """Why a rule does not serve a node, None where it does. A plugin's rule that fails on the
    question, or does not answer it, does not serve the node either."""
    if not getattr(rule, "keeps_state", False):
        kept = next((v for v in node.inputs if v is not None and v.is_variable), None)
        if kept is not None:
            return f"tensor {kept.name} is a variable; {rule} keeps no state on a device"
    if not rule.owner:
        return rule.accepts(node, site)
    answer = ask(rule.accepts, node, node, site)
    if isinstance(answer, Failed):
        return PluginFault(
            f"plugin {rule.owner}: {rule} failed on the question whether it accepts: {answer}"
        )
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    return PluginFault(
        f"plugin {rule.owner}: {rule} answered {shown(answer)} to whether it accepts, which is "
        "neither None nor a reason"
    )


#: Floats are computed in the precision's type, the rest in 32-bit whole numbers.
FLOATS = frozenset({DType.F32, DType.F16})
NUMBERS = FLOATS | {DType.I32}
BOOLS = frozenset({DType.BOOL})
ANY = NUMBERS | BOOLS
#: In buffers only, for conversions: a load widens them.
BYTES = frozenset({DType.I8, DType.U8})


def takes(
    allowed: frozenset[DType], operands: int | None = None, *, results: frozenset[DType] = ANY
) -> Accepts:
    """Accepts nodes whose first ``operands`` operands (None = all) have one of these types and
    whose results have one of ``results``."""

    def accepts(node: Node, site: Site) -> str | None:
        inputs = node.inputs if operands is None else node.inputs[:operands]
        for value in inputs:
            if value is not None and value.dtype not in allowed:
                return _refusal(node, f"operand {value.name}", value.dtype, allowed)
        for value in node.outputs:
            if value.dtype not in results:
                return _refusal(node, f"result {value.name}", value.dtype, results)
        return None

    return accepts


def _refusal(node: Node, what: str, dtype: DType, allowed: frozenset[DType]) -> str:
    names = ", ".join(sorted(d.value for d in allowed))
    return f"{node.op}: {what} is {dtype.value}; its kernels take {names}"
