"""Which operators run subgraphs (branches of IF, the body of WHILE), and which ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tflgpu.errors import BudgetError, ModelError
from tflgpu.ir.budget import DEEPEST, spend
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


def run_by_host(operator: OperatorInfo) -> bool:
    """Whether an interpreter runs an operator between graphs: control flow, state, and operators on
    texts, which graphs do not have."""
    return operator.texts or (operator.name in RUN_BY_HOST and not operator.is_custom)


#: Control flow, by the options that are the number of a subgraph, or the numbers of several; and
#: what keeps variables.
CONTROL = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
    "CALL_ONCE": ("init_subgraph_index",),
    "STABLEHLO_CASE": ("branch_subgraph_indices",),
}
#: How the names of such options end.
ENDS = ("subgraph", "subgraph_index", "subgraph_indices")
STATE = frozenset(
    {
        "VAR_HANDLE",
        "READ_VARIABLE",
        "ASSIGN_VARIABLE",
        "HASHTABLE",
        "HASHTABLE_IMPORT",
        "HASHTABLE_FIND",
        "HASHTABLE_SIZE",
    }
)
#: What no graph has a node of: an interpreter runs it, between graphs.
RUN_BY_HOST = STATE.union(CONTROL)


def _numbers(fields: Mapping[str, Any]) -> list[str]:
    """The options that are the number of a subgraph, or of several."""
    return [name for name in fields if name.endswith(ENDS)]


def runs_subgraphs(fields: Mapping[str, Any]) -> bool:
    """Whether an operator with these options runs other subgraphs."""
    return bool(_numbers(fields))


def subgraphs_of(fields: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The subgraphs that an operator with these options runs, by the option that names them."""
    values = {name: fields[name] for name in _numbers(fields)}
    return {
        name: tuple(int(n) for n in value) if isinstance(value, tuple) else (int(value),)
        for name, value in values.items()
    }


def check_nesting(subgraphs: Sequence[SubgraphInfo]) -> None:
    """Check that subgraphs which run subgraphs end, and do not ask for more work than any model.

    A subgraph is run or written out at each operator that calls it, so that a few
    levels of a few operators each can stand for millions.

    Raises:
        ModelError: a subgraph runs itself, directly or not.
        BudgetError: they lie too deep in each other, or stand for too many operators.
    """
    # What each stands for (operators with their operands and results, and tensors), and its levels.
    sizes: dict[int, tuple[int, int]] = {}

    def size(number: int, inside: tuple[int, ...]) -> tuple[int, int]:
        where = f"subgraph {number}"
        if number in inside:
            raise ModelError(
                f"{where} runs itself, by way of subgraph {inside[-1]}; this would never end"
            )
        if number not in sizes:
            written, levels = len(subgraphs[number].tensors), 0
            for operator in subgraphs[number].operators:
                written += 1 + len(operator.inputs) + len(operator.outputs)
                for body in chain(*subgraphs_of(operator.fields).values()):
                    found = size(body, (*inside, number)) if len(inside) <= DEEPEST else (0, 0)
                    written, levels = written + found[0], max(levels, found[1])
            sizes[number] = written, levels + 1
        if len(inside) + sizes[number][1] > DEEPEST:
            raise BudgetError(
                f"{where}: subgraphs lie more than {DEEPEST} deep in each other; convert the "
                "model with fewer loops, branches and composites in each other"
            )
        return sizes[number]

    for start in range(len(subgraphs)):
        spend("nodes", size(start, ())[0], f"subgraph {start}, with the subgraphs that it runs")
