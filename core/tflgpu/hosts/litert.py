"""LiteRT as the host of a `GpuDelegate`: its calls, and which nodes the delegate took."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.compiler.report import DelegationReport, insist, tell
from tflgpu.compiler.report_values import OperatorReport, PartitionReport, Place, Refusal
from tflgpu.hosts.callbacks import Native, Nodes, Preview
from tflgpu.hosts.kernel import SubsetKernel
from tflgpu.hosts.layout import check_layout
from tflgpu.hosts.reading import HostGraph, read_context
from tflgpu.hosts.runtimes import calling_runtimes
from tflgpu.hosts.subsets import Decision, decide
from tflgpu.runtime.provider import Provider

_MOST_REPORTS = 32
#: What runs the operators that are left, as reports name it.
LITERT = "LiteRT"


class LiteRtHost:
    """One delegate inside LiteRT. It serves any number of interpreters, one after another or in
    threads.

    Attributes:
        reports: What became of each graph that LiteRT handed over, a model's subgraphs one by one;
            the last ones are kept.
    """

    def __init__(self, provider: Provider) -> None:
        # Its delegate owns this object, and its kernels keep it.
        self._provider = weakref.ref(provider)
        self._guard = RunGuard("this delegate")
        self._native = Native(self)
        self.reports: deque[DelegationReport] = deque(maxlen=_MOST_REPORTS)

    def pointer(self) -> int:
        """The `TfLiteDelegate*` for the interpreter that is calling.

        Raises:
            UnsupportedError: its structs are not known here.
        """
        for runtime in calling_runtimes():
            check_layout(runtime)
        return self._native.pointer

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, SubsetKernel]:
        """As `tflgpu.hosts.callbacks.Chooses`.

        Raises:
            UnsupportedError: an operator cannot run on the device, and ``allow_fallback`` is off.
            TflgpuError: as `decide`.
        """
        provider = self._provider()
        if provider is None:
            return {}
        opened = provider.usable()
        with self._guard:
            graph = read_context(context)
            decision = decide(graph, provider, preview)
            try:
                report = opened.signed(_report(graph, decision))
                if not provider.options.allow_fallback:
                    insist(report, report.device or "any device")
            except BaseException:
                for subset in decision.subsets:
                    subset.opened.session.close()
                raise
            self.reports.append(report)
            tell(report)
            return {s.nodes: SubsetKernel(graph, provider, s, self) for s in decision.subsets}


def _report(graph: HostGraph, decision: Decision) -> DelegationReport:
    refusals = tuple(
        Refusal(n, graph.operators[n].name, no.reason, LITERT, no.code)
        for n in graph.operators
        if (no := decision.refused.get(n)) is not None
    )
    rows = {n: _row(graph, n) for n in graph.operators}
    for refusal in refusals:
        rows[refusal.node] = attrs.evolve(
            rows[refusal.node],
            place=Place.CPU,
            runs_on=LITERT,
            code=refusal.code,
            reason=refusal.reason,
        )
    parts = []
    reports = [subset.opened.session.report for subset in decision.subsets]
    for number, (subset, report) in enumerate(zip(decision.subsets, reports, strict=True)):
        for row in report.operators:
            if row.node in subset.nodes:
                inside = row.place is Place.DEVICE
                rows[row.node] = attrs.evolve(row, partition=number if inside else None)
        opened = subset.opened
        parts.append(
            PartitionReport(number, subset.nodes, report.dispatches, opened.seconds, opened.gain)
        )
    first = reports[0] if reports else None
    return DelegationReport(
        total_nodes=len(graph.operators),
        delegated_nodes=len(graph.operators) - len(refusals) if reports else 0,
        refusals=refusals,
        partitions=len(parts),
        dispatches=sum(part.dispatches for part in parts),
        operators=tuple(rows[n] for n in sorted(rows)),
        parts=tuple(parts),
        estimates=first.estimates if first is not None else "",
        measured=first is not None and first.measured,
    )


def _row(graph: HostGraph, node: int) -> OperatorReport:
    """What is known of every operator; the place is that of one that only works out constants."""
    operator = graph.operators[node]

    def names(tensors: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(graph.tensors[t].name if t >= 0 else "" for t in tensors)

    return OperatorReport(
        node, operator.name, names(operator.inputs), names(operator.outputs), Place.FOLDED
    )
