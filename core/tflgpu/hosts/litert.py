"""LiteRT as the host of a `GpuDelegate`: what it is asked, and what it took, graph by graph."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

from tflgpu.compiler.report import DelegationReport, Refusal, insist
from tflgpu.contract.forks import Holder
from tflgpu.hosts.callbacks import Native, Nodes, Preview
from tflgpu.hosts.kernel import Kernel
from tflgpu.hosts.layout import check_layout
from tflgpu.hosts.reading import HostGraph, read_context
from tflgpu.hosts.runtimes import calling_runtimes
from tflgpu.hosts.subsets import Decision, Engine, decide

_LOG = logging.getLogger("tflgpu")
_MOST_REPORTS = 32


class LiteRtHost(Holder):
    """One delegate inside LiteRT. It serves any number of interpreters, one after another or in
    threads.

    Attributes:
        reports: What became of each graph that LiteRT handed over, a model's subgraphs one by one;
            the last ones are kept.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)  # which owns this object; its kernels keep it
        self._lock = threading.Lock()
        self._native = Native(self)
        self.reports: deque[DelegationReport] = deque(maxlen=_MOST_REPORTS)
        self.belongs_to_process()

    def after_fork(self) -> None:
        """What another thread locked, nobody unlocks in a child."""
        self._lock = threading.Lock()

    def pointer(self) -> int:
        """The `TfLiteDelegate*` for the interpreter that is calling.

        Raises:
            UnsupportedError: its structs are not known here.
        """
        for runtime in calling_runtimes():
            check_layout(runtime)
        return self._native.pointer

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, Kernel]:
        """As `tflgpu.hosts.callbacks.Chooses`.

        Raises:
            UnsupportedError: an operator cannot run on the device, and ``allow_fallback`` is off.
            TflgpuError: as `decide`.
        """
        engine = self._engine()
        if engine is None:
            return {}
        with self._lock:
            graph = read_context(context)
            decision = decide(graph, engine, preview)
            try:
                report = engine.signed(_report(graph, decision))
                if not engine.options.allow_fallback:
                    insist(report, report.device or "any device")
            except BaseException:
                for subset in decision.subsets:
                    subset.opened.session.close()
                raise
            self.reports.append(report)
            for refusal in report.refusals:
                _LOG.info("tflgpu: #%d %s: %s", refusal.node, refusal.op, refusal.reason)
            return {s.nodes: Kernel(graph, engine, s) for s in decision.subsets}


def _report(graph: HostGraph, decision: Decision) -> DelegationReport:
    refusals = tuple(
        Refusal(n, graph.operators[n].name, decision.refused[n])
        for n in graph.operators
        if n in decision.refused
    )
    return DelegationReport(
        total_nodes=len(graph.operators),
        delegated_nodes=len(graph.operators) - len(refusals),
        refusals=refusals,
        partitions=len(decision.subsets),
        dispatches=sum(s.opened.session.report.dispatches for s in decision.subsets),
    )
