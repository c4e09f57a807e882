"""A graph transformation, and the driver that runs them to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tflgpu.errors import GraphError
from tflgpu.ir.graph import Graph
from tflgpu.ir.verify import verify

#: Rounds of a phase in a row that make the graph no smaller. A long model may need more rounds than
#: that, each of which removes something.
_MAX_ROUNDS = 50


@attrs.frozen
class Pass:
    """One transformation.

    Attributes:
        name: Verb first ("merge_padding").
        run: Edits the graph in place; returns how many edits it made, 0 at the fixpoint.
        phase: Passes of a lower phase reach their fixpoint before those of a higher one run. The
            shipped ones: 0 tidies up, 10 recognizes layers, 20 folds into filters what 10 left,
            30 fuses activations.
    """

    name: str
    run: Callable[[Graph], int]
    phase: int = 0


def run_passes(graph: Graph, passes: Sequence[Pass]) -> dict[str, int]:
    """Run passes phase by phase, each phase to a fixpoint; gives the edits by pass name.

    The graph is pruned and verified after every pass that changed it.

    Raises:
        GraphError: a pass broke the graph, or a phase does not settle; names the pass.
    """
    counts = {p.name: 0 for p in passes}
    for phase in sorted({p.phase for p in passes}):
        active = [p for p in passes if p.phase == phase]
        fruitless, least = 0, len(graph.nodes)
        while fruitless < _MAX_ROUNDS:
            edits = 0
            for item in active:
                made = item.run(graph)
                if made:
                    counts[item.name] += made
                    edits += made
                    graph.prune()
                    verify(graph, item.name)
            if not edits:
                break
            fruitless = 0 if len(graph.nodes) < least else fruitless + 1
            least = min(least, len(graph.nodes))
        else:
            names = ", ".join(p.name for p in active)
            raise GraphError(f"graph {graph.name}: passes {names} do not settle")
    return counts
