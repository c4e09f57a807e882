"""An elementwise node joins the group that makes one of its operands: the store does it.

    conv -> RELU -> ADD(., skip) -> ...      one group: the conv's store does the rest

It does so where the operand has no other reader, is not an output, and has the shape of the result.
The group then runs where its last node stood, so any other operand the chain needs exists by then.

    conv -> x, LOGISTIC(x) -> s, MUL(x, s)   one group too: swish

Where a node closes branches that begin at one value, and these read besides it only constants and
values that exist by then, all of them join the group that makes this value.

A chain has a budget (`tflgpu.language.budget`): the node that would exceed it begins a group of its
own, which others may join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.compiler.fuse import Group, Neighbours, buffers_of
from tflgpu.errors.blame import Failed, attempt
from tflgpu.ir.graph import Node
from tflgpu.language.budget import MAX_CHAIN, cost
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.rule import ElementwiseRule

#: What reading one more operand may cost, where it is broadcast: a division and a remainder for
#: each dimension.
_OPERAND_COST = 16


class JoinChains:
    """A walk over groups of which each is a node yet, or what one rule makes together."""

    def __init__(
        self, neighbours: Neighbours, elementwise: Callable[[Node], ElementwiseRule | None]
    ) -> None:
        """Know all groups, and the expression by which a node may join others."""
        self._neighbours, self._elementwise = neighbours, elementwise
        self._costs = _Costs()

    def join(self) -> None:
        """Let each node begin with what makes its operands, where it can."""
        for chain in self._neighbours.groups:
            if chain.before or self._elementwise(chain.head) is None:
                continue
            makers = self._makers(chain)
            branches = [group for group in makers if self._is_branch(group, chain)]
            firsts = self._makers(branches[0]) if branches else []
            closed = [
                group
                for group in firsts
                if group not in branches and self._fit(group, chain, branches)
            ]
            alone = [group for group in makers if self._fit(group, chain, [])]
            # The operand made last: its kernel runs now anyway.
            for maker in (*branches[::-1], closed[0]) if closed else alone[-1:]:
                first = self._elementwise(chain.head)
                assert first is not None
                fused = FusedNode(chain.head, first.expr, first.owner)
                chain.begin_with(maker, fused, maker.cost + self._cost(chain))
                self._neighbours.replace(maker, [chain])

    def _makers(self, chain: Group) -> list[Group]:
        found = [self._neighbours.maker(v) for v in chain.head.inputs if v is not None]
        return [group for group in found if group is not None]

    def _is_branch(self, group: Group, chain: Group) -> bool:
        """Whether a group is elementwise as a whole, and nothing but a node reads its result."""
        plain = not group.before and self._elementwise(group.head) is not None
        return plain and self._neighbours.readers(group) == (chain,) and _alike(group, chain)

    def _fit(self, maker: Group, chain: Group, branches: Sequence[Group]) -> bool:
        """Whether a group can be one with all that reads its result: branches and a node."""
        readers, parts = set(self._neighbours.readers(maker)), (*branches, chain)
        nodes = [node for group in parts for node in group.nodes]
        caps = self._neighbours.site_of(chain.head).caps
        return (
            readers - {chain} == set(branches)
            and bool(readers)
            and maker.rule.fuses
            and len(maker.head.outputs) == 1
            and _alike(maker, chain)
            and maker.cost + sum(map(self._cost, parts)) <= MAX_CHAIN
            and buffers_of(maker, nodes) <= caps.max_bindings
        )

    def _cost(self, chain: Group) -> int:
        """What all nodes of a group cost, in the store of another."""
        first = self._elementwise(chain.head)
        assert first is not None
        return self._costs.of(chain.head, first) + chain.cost


def _alike(maker: Group, chain: Group) -> bool:
    """Whether the store of a group could go on to what a node makes."""
    made, out = maker.result, chain.head.outputs[0]
    return made.shape == out.shape and made.dtype.is_float and out.dtype is made.dtype


class _Costs:
    """Costs of elementwise nodes in a store; nodes that differ in their operands only are looked at
    once."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, node: Node, rule: ElementwiseRule) -> int:
        """The cost of one node."""
        kinds = tuple(None if v is None else v.dtype for v in node.inputs)
        key = (id(rule), node.attrs, kinds)
        try:
            found = self._known.get(key)
        except TypeError:  # attributes that have no hash
            return _cost(node, rule)
        if found is None:
            found = self._known[key] = _cost(node, rule)
        return found


def _cost(node: Node, rule: ElementwiseRule) -> int:
    """The cost of an expression. One of a plugin's that fails is too dear to join anything: what
    is wrong with it is said where its own kernel is built."""
    if not rule.owner:
        return _measured(node, rule)
    found = attempt(_measured, node, rule)
    return MAX_CHAIN + 1 if isinstance(found, Failed) else int(found)


def _measured(node: Node, rule: ElementwiseRule) -> int:
    k = Builder(node.op, (1, 1, 1))
    result = k.buffer("result", Scalar.F32, 4, "read_write")
    vector = k.load(result, k.i32(0))
    operands = [
        vector if value.dtype.is_float else k.cast(vector, Scalar.I32)
        for value in node.inputs
        if value is not None
    ]
    made = rule.expr(k, node.attrs, [k.let(each, "operand") for each in operands])
    k.store(result, k.i32(0), k.cast(made, Scalar.F32))
    return cost(k.build()) + _OPERAND_COST * max(0, len(operands) - 1)
