"""What a compiled graph says of the operators of its file."""

from __future__ import annotations

from tflgpu.compiler.compile import Compiled
from tflgpu.errors import UnsupportedError
from tflgpu.ir.graph import Graph
from tflgpu.runtime.report import DelegationReport, Refusal


def refusals_of(graph: Graph, compiled: Compiled) -> tuple[Refusal, ...]:
    """One for each operator of the file that stays on the CPU; ``graph`` is what was compiled."""
    names = _names(graph)
    found: dict[int, Refusal] = {}  # an operator's simulator says nothing new
    for left in compiled.refusals:
        for origin in left.origins:
            found.setdefault(origin, Refusal(origin, names[origin], left.reason))
    return tuple(found.values())


def report_of(graph: Graph, compiled: Compiled) -> DelegationReport:
    """Where the operators run; which device it is, is for its owner to add."""
    total = set(_names(graph))
    refusals = refusals_of(graph, compiled)
    refused = {refusal.node for refusal in refusals}
    on_device = compiled.delegated
    return DelegationReport(
        total_nodes=len(total),
        # What the passes folded away costs nothing; it counts as done by the device.
        delegated_nodes=len(total - refused) if on_device or not refused else 0,
        refusals=refusals,
        partitions=len(on_device),
        dispatches=sum(part.dispatches for part in on_device),
    )


def _names(graph: Graph) -> dict[int, str]:
    return {origin: node.op for node in graph for origin in node.origins}


def insist(report: DelegationReport, device: str) -> None:
    """Accept a report only if nothing is left for the CPU.

    Raises:
        UnsupportedError: something is; lists the operators with the reasons.
    """
    if report.refusals:
        listed = "; ".join(f"#{r.node} {r.op}: {r.reason}" for r in report.refusals)
        raise UnsupportedError(
            f"{len(report.refusals)} operators cannot run on {device} and allow_fallback is off: "
            f"{listed}"
        )
