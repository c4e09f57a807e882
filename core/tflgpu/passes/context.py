"""`PassContext`: what a pass may know besides the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tflgpu.ir.graph import Node
from tflgpu.ops.base import Activation, OpDef
from tflgpu.ops.facets import Filter
from tflgpu.ops.unknown import UnknownOp
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.lowering.rule import Site
    from tflgpu.ops.affine import Affine


@frozen(eq=False)
class PassContext:
    """The ops there are, and for what the graph is compiled.

    A pass asks an op's definition, by these functions, and not its name: so an op of a plugin takes
    part as a shipped one does.

    Attributes:
        ops: Op definitions by name, those of plugins among them.
        site: The device's capabilities and the precision; None where the graph is prepared for no
            device in particular.
        kernels: Whether the device runs kernels, and not operators as they are.
    """

    ops: Mapping[str, OpDef]
    site: Site | None = None
    kernels: bool = False

    def op(self, node: Node) -> OpDef | None:
        """The definition of a node's op; None where there is none, or where what the file says of
        the node is not understood."""
        return None if isinstance(node.attrs, UnknownOp) else self.ops.get(node.op)

    def activation_of(self, node: Node) -> Activation:
        """The activation fused into a node."""
        op = self.op(node)
        return Activation.NONE if op is None else op.activation_of(node)

    def is_linear(self, node: Node) -> bool:
        """Whether a node has no activation fused into it."""
        return self.activation_of(node) is Activation.NONE

    def affine_of(self, node: Node) -> Affine | None:
        """The arithmetic that a node does, before its activation, with a constant per channel."""
        op = self.op(node)
        return None if op is None or op.arithmetic.affine is None else op.arithmetic.affine(node)

    def filter_of(self, node: Node | None) -> Filter | None:
        """Which operand of a node is what, where it has a filter."""
        op = None if node is None else self.op(node)
        return None if op is None else op.arithmetic.filter

    def activation_node(self, activation: Activation) -> str | None:
        """The op that computes an activation, and nothing else."""
        if activation is Activation.NONE:
            return None
        found = (op.name for op in self.ops.values() if op.arithmetic.computes is activation)
        return next(found, None)
