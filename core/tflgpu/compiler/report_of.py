"""Makes a `DelegationReport` of a compiled graph, and adds what is known later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from tflgpu.compiler.parts import Compiled, Part
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import (
    InFloats,
    OperatorReport,
    PartitionReport,
    Place,
    Refusal,
    TunedDispatch,
)
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph, Node
from tflgpu.lowering.reason import ReasonCode


def report_of(graph: Graph, compiled: Compiled) -> DelegationReport:
    """Where the operators run; which device it is, is for its owner to add."""
    total = set(_names(graph))
    named = {o for part in compiled.parts for o in _origins(part)}
    if not named.union(*(left.origins for left in compiled.refusals)) <= total:
        raise SavedModelError(
            "a saved model is damaged: it has operators that the model does not have"
        )
    refusals = refusals_of(graph, compiled)
    refused = {refusal.node for refusal in refusals}
    on_device = compiled.delegated
    parts = tuple(
        PartitionReport(
            number, tuple(sorted(_origins(part))), part.dispatches, part.seconds, part.gain
        )
        for number, part in enumerate(on_device)
    )
    report = DelegationReport(
        total_nodes=len(total),
        # What the passes folded away costs nothing; it counts as done by the device.
        delegated_nodes=len(total - refused) if on_device or not refused else 0,
        refusals=refusals,
        partitions=len(on_device),
        dispatches=sum(part.dispatches for part in on_device),
        operators=_operators(graph, compiled, refusals),
        parts=parts,
        estimates=compiled.times.note,
        measured=compiled.times.measured,
        seconds=sum(part.seconds for part in compiled.parts),
        cpu_seconds=compiled.alone,
        composites=compiled.composites,
        tuned=tuple(
            TunedDispatch(dispatch.origins, dispatch.tuned)
            for plan in compiled.plans
            for dispatch in plan.dispatches
            if dispatch.tuned
        ),
    )
    return with_numerics(report, graph, compiled.integers, compiled.in_floats)


def refusals_of(graph: Graph, compiled: Compiled) -> tuple[Refusal, ...]:
    """One for each operator of the file that stays on the CPU; ``graph`` is what was compiled."""
    names = _names(graph)
    found: dict[int, Refusal] = {}  # an operator's simulator says nothing new
    for left in compiled.refusals:
        for origin in left.origins:
            refusal = Refusal(origin, names[origin], left.reason, code=left.code)
            found.setdefault(origin, refusal)
    return tuple(found.values())


def cpu_report(graph: Graph, reason: str, code: ReasonCode) -> DelegationReport:
    """The report of a graph that the CPU runs as a whole, for one reason."""
    names = _names(graph)
    refusals = tuple(Refusal(node, op, reason, code=code) for node, op in names.items())
    rows = _rows(graph)
    operators = tuple(attrs.evolve(rows[n], code=code, reason=reason) for n in sorted(rows))
    return DelegationReport(len(names), 0, refusals, operators=operators)


def with_numerics(
    report: DelegationReport, graph: Graph, integers: Iterable[int], in_floats: Mapping[int, str]
) -> DelegationReport:
    """A report that says what quantized operators are computed on; ``graph`` is the file's."""
    names = _names(graph)
    return attrs.evolve(
        report,
        integers=tuple(sorted(integers)),
        in_floats=tuple(InFloats(at, names[at], why) for at, why in sorted(in_floats.items())),
    )


def placed(report: DelegationReport, names: Mapping[int, str]) -> DelegationReport:
    """A copy that names what runs the operators on the CPU, by their index in the file."""
    refusals = tuple(attrs.evolve(r, runs_on=names.get(r.node, "")) for r in report.refusals)
    operators = tuple(
        attrs.evolve(o, runs_on=names.get(o.node, "")) if o.place is Place.CPU else o
        for o in report.operators
    )
    return attrs.evolve(report, refusals=refusals, operators=operators)


def on_device(
    report: DelegationReport, backend: str, device: str, precision: str, choice: Sequence[str]
) -> DelegationReport:
    """A copy that names the device."""
    operators = tuple(
        attrs.evolve(o, backend=backend, device=device) if o.place is Place.DEVICE else o
        for o in report.operators
    )
    return attrs.evolve(
        report,
        backend=backend,
        device=device,
        precision=precision,
        choice=tuple(choice),
        operators=operators,
    )


def untimed(report: DelegationReport) -> DelegationReport:
    """A copy without estimated times, for a device without figures."""
    return attrs.evolve(
        report,
        operators=tuple(attrs.evolve(o, seconds=None, gain=None) for o in report.operators),
        parts=tuple(attrs.evolve(p, seconds=None, gain=None) for p in report.parts),
        estimates="",
        seconds=None,
        cpu_seconds=None,
    )


def _operators(
    graph: Graph, compiled: Compiled, refusals: Sequence[Refusal]
) -> tuple[OperatorReport, ...]:
    """A row for each operator. One that became several nodes is where the last of those is that the
    device does not run, if there is any."""
    rows = {n: attrs.evolve(row, place=Place.FOLDED) for n, row in _rows(graph).items()}
    spent: dict[int, float] = {}
    saved: dict[int, float] = {}
    number = -1
    for part in compiled.parts:
        number += part.delegated
        for node, cost in zip(part.nodes, part.costs, strict=True):
            for origin in node.origins:
                share = len(node.origins)
                seconds = cost.device if part.delegated else cost.host
                spent[origin] = spent.get(origin, 0.0) + seconds / share
                saved[origin] = saved.get(origin, 0.0) + (cost.host - seconds) / share
                place = Place.DEVICE if part.delegated else Place.CPU
                if rows[origin].place is not Place.CPU:
                    at = number if part.delegated else None
                    rows[origin] = attrs.evolve(rows[origin], place=place, partition=at)
    for refusal in refusals:
        rows[refusal.node] = attrs.evolve(
            rows[refusal.node],
            place=Place.CPU,
            partition=None,
            code=refusal.code,
            reason=refusal.reason,
        )
    return tuple(
        attrs.evolve(
            rows[n],
            seconds=spent.get(n, 0.0),
            gain=saved[n] if rows[n].place is Place.DEVICE else None,
        )
        for n in sorted(rows)
    )


def _rows(graph: Graph) -> dict[int, OperatorReport]:
    return {
        origin: OperatorReport(
            origin,
            node.op,
            tuple("" if v is None else v.name for v in node.inputs),
            tuple(v.name for v in node.outputs),
        )
        for node in _of_the_file_last(graph)
        for origin in node.origins
    }


def _origins(part: Part) -> set[int]:
    return {origin for node in part.nodes for origin in node.origins}


def _names(graph: Graph) -> dict[int, str]:
    return {origin: node.op for node in _of_the_file_last(graph) for origin in node.origins}


def _of_the_file_last(graph: Graph) -> list[Node]:
    """Nodes, so that of several that stand for one operator the file's own names it."""
    return sorted(graph, key=lambda node: node.source is not None)
