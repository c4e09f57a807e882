"""How another delegate divides a file: the operators that it takes, its parts, and its refusals.

As LiteRT does it (``tflite/delegates/utils.cc``, ``tflite/graph_info.cc``, August 2026): each
operator is asked for, the operators are divided into subsets of one side each, always taking all
that are ready before changing sides, and of the delegate's subsets those with the most operators
are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tflgpu.profiles.file_operator import FileOperator, FileSubgraph
from tflgpu.profiles.rules import RuleTable
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


@attrs.frozen
class Delegation:
    """Where the operators of a subgraph go.

    Attributes:
        parts: Operators on the GPU, by index, in the parts in which they run.
        reasons: Why the others stay on the CPU, by index.
        flaws: What goes wrong with operators that are taken, by index.
    """

    parts: tuple[tuple[int, ...], ...]
    reasons: Mapping[int, str]
    flaws: Mapping[int, Sequence[str]]


def delegated(
    subgraph: SubgraphInfo,
    rules: RuleTable,
    *,
    quantized: bool = True,
    max_partitions: int | None = None,
) -> Delegation:
    """Divide a subgraph as a delegate would. ``max_partitions`` is the table's unless given."""
    file_subgraph = FileSubgraph.of(subgraph, rules.half_constants)
    reasons: dict[int, str] = {}
    flaws: dict[int, Sequence[str]] = {}
    for op in subgraph.operators:
        operator = FileOperator(op, file_subgraph)
        if op.index in file_subgraph.halving:
            reasons[op.index] = "it makes f32 of a 16-bit constant, which the GPU reads as it is"
            continue
        why = rules.refusal(operator, quantized=quantized)
        if why:
            reasons[op.index] = why
        elif found := rules.flaws(operator):
            flaws[op.index] = found
    every = tuple(op.index for op in subgraph.operators)
    if set(reasons) == file_subgraph.halving and len(reasons) < len(every):
        # Nothing else reads them, so that they go along.
        return Delegation((every,), {}, flaws)
    parts = [
        part
        for part in _subsets(subgraph, lambda op: op.index not in reasons)
        if part[0] not in reasons
    ]
    most = rules.max_partitions if max_partitions is None else max_partitions
    largest = sorted(parts, key=lambda part: -len(part))  # a stable sort, as the original's is not
    for place, part in enumerate(largest[most:], most + 1):
        reasons |= dict.fromkeys(
            part,
            f"it would be taken, but its part of the graph ({_count(part)}) is number {place} by "
            f"size, and at most {most} may go to the GPU",
        )
    kept = [part for part in parts if part in largest[:most]]
    taken = {index for part in kept for index in part}
    left = {index: found for index, found in flaws.items() if index in taken}
    return Delegation(tuple(kept), dict(sorted(reasons.items())), left)


def _subsets(
    subgraph: SubgraphInfo, takes: Callable[[OperatorInfo], bool]
) -> list[tuple[int, ...]]:
    """Operators of one side each, in an order in which they can run.

    The first that is ready, in the file's order, decides which side a subset is of.
    """
    made = {i for op in subgraph.operators for i in op.outputs}
    ready = {t.index for t in subgraph.tensors if t.index not in made} | {-1}
    waiting = list(subgraph.operators)
    subsets: list[tuple[int, ...]] = []
    while waiting:
        side: bool | None = None
        subset: list[int] = []
        moved = True
        while moved:
            moved = False
            later = []
            for op in waiting:
                if not ready.issuperset(op.inputs) or side not in (None, takes(op)):
                    later.append(op)
                    continue
                side = takes(op)
                subset.append(op.index)
                ready.update(op.outputs)
                moved = True
            waiting = later
        if not subset:  # operators that wait for each other: no file that runs has them
            subset, waiting = [op.index for op in waiting], []
        subsets.append(tuple(subset))
    return subsets


def _count(part: Sequence[int]) -> str:
    return f"{len(part)} operator{'s' if len(part) > 1 else ''}"
