"""A graph transformation, what it may know besides the graph, and the driver that runs all to a
fixpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from tflgpu.errors import GraphError, PluginError
from tflgpu.errors.blame import Failed, attempt, shown
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Activation, OpDef
from tflgpu.ops.facets import Filter
from tflgpu.ops.unknown import UnknownOp, unknown_reason
from tflgpu.passes.foreign import GraphSnapshot, check_edits
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.lowering.rule import Site
    from tflgpu.ops.affine import Affine

#: Rounds of a phase in a row that make the graph no smaller. A long model may need more rounds than
#: that, each of which removes something.
_MAX_ROUNDS = 50


@attrs.frozen
class Pass:
    """One transformation.

    Attributes:
        name: Verb first ("merge_padding").
        run: Graph and context. Edits the graph in place; returns how many edits it made, 0 at the
            fixpoint.
        phase: Passes of a lower phase reach their fixpoint before those of a higher one run. The
            shipped ones: 0 tidies up, 10 recognizes layers, 20 folds into filters what 10 left,
            25 leaves out rows that are dropped, 30 fuses activations.
        owner: The plugin that brought it, "" for a shipped one. The registry fills it in.
    """

    name: str
    run: Callable[[Graph, PassContext], int]
    phase: int = 0
    owner: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        return f"{self.name} of plugin {self.owner}" if self.owner else self.name


def per_node(
    step: Callable[[Rewriter, PassContext, Node], bool], *ops: str
) -> Callable[[Graph, PassContext], int]:
    """`Pass.run` of a transformation that looks at one node after the other, of ``ops`` (of all,
    without any): ``step`` may rewrite what is around a node, and says whether it did."""

    def run(graph: Graph, context: PassContext) -> int:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes(*ops):
            if step(rewriter, context, node):
                rewriter.count()
        return rewriter.edits

    return run


def run_passes(graph: Graph, passes: Sequence[Pass], context: PassContext) -> dict[str, int]:
    """Run passes phase by phase, each phase to a fixpoint; gives the edits by pass name.

    The graph is pruned and verified after every pass that changed it. A graph with a node that
    nothing can run stays as it is: it is never run, and the shapes that follow from such a node are
    placeholders, which a pass would take for real ones.

    A plugin's pass is checked: its edits are found by comparing the graph before and after, and the
    shapes of the nodes that it made or changed are inferred anew.

    Raises:
        GraphError: a pass broke the graph, or a phase does not settle; names the pass, and its
            plugin.
        PluginError: a plugin's pass raised, or did not say how much it edited.
    """
    counts = {p.name: 0 for p in passes}
    if any(unknown_reason(node.attrs) is not None or not node.shapes_known for node in graph):
        return counts
    for phase in sorted({p.phase for p in passes}):
        active = [p for p in passes if p.phase == phase]
        fruitless, least = 0, len(graph.nodes)
        while fruitless < _MAX_ROUNDS:
            restless = []
            for item in active:
                run = _run_foreign if item.owner else _run
                made = run(graph, item, context)
                if made:
                    counts[item.name] += made
                    restless.append(str(item))
            if not restless:
                break
            fruitless = 0 if len(graph.nodes) < least else fruitless + 1
            least = min(least, len(graph.nodes))
        else:
            raise GraphError(
                f"graph {graph.name}: passes {', '.join(restless)} do not settle: they still "
                f"edit it after {_MAX_ROUNDS} rounds"
            )
    return counts


def _run(graph: Graph, item: Pass, context: PassContext) -> int:
    """A pass of ours, with its tests behind it."""
    made = item.run(graph, context)
    if made:
        graph.prune()
        verify(graph, item.name)
    return made


def _run_foreign(graph: Graph, item: Pass, context: PassContext) -> int:
    """A plugin's pass."""
    where = f"pass {item}, on graph {graph.name}"
    before = GraphSnapshot.of(graph)
    made = attempt(item.run, graph, context)
    if isinstance(made, Failed):
        raise PluginError(f"{where}: it raised {made}") from made.error
    if isinstance(made, bool) or not isinstance(made, int) or made < 0:
        raise PluginError(
            f"{where}: it returned {shown(made)}; a pass returns how many edits it made, 0 where "
            "there is nothing left to do"
        )
    edited = attempt(check_edits, graph, before, str(item), context.ops)
    if isinstance(edited, Failed):
        if isinstance(edited.error, GraphError):
            raise edited.error
        raise GraphError(f"{where}: what it left is no graph: {edited}") from edited.error
    if edited and not made:
        raise PluginError(
            f"{where}: it edited the graph and returned 0, which says that it did not"
        )
    return made


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


def both_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """The two operands of a node, in either order."""
    a, b = node.input(0), node.input(1)
    yield a, b
    yield b, a
