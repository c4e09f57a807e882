"""A report as plain values and as JSON, for other programs; docs/report.md describes the fields."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tflgpu.compiler.report_values import AccuracyCheck, OperatorReport, ReportFields

#: Changes where a field goes or means something else; new fields leave it as it is.
VERSION = 1


def to_dict(report: ReportFields) -> dict[str, Any]:
    """Strings, numbers, booleans, None, lists and dictionaries of these."""
    return {
        "version": VERSION,
        "summary": report.summary,
        "total_operators": report.total_nodes,
        "delegated_operators": report.delegated_nodes,
        "fully_delegated": report.fully_delegated,
        "backend": report.backend,
        "device": report.device,
        "precision": report.precision,
        "choice": list(report.choice),
        "partitioning": report.partitioning,
        "partitioning_reason": report.partitioning_reason,
        "estimates": report.estimates,
        "measured": report.measured,
        "seconds": _number(report.seconds),
        "cpu_seconds": _number(report.cpu_seconds),
        "dispatches": report.dispatches,
        "partitions": [
            {
                "number": part.number,
                "operators": list(part.operators),
                "dispatches": part.dispatches,
                "seconds": _number(part.seconds),
                "gain": _number(part.gain),
            }
            for part in report.parts
        ],
        "operators": [_operator(operator) for operator in report.operators],
        "integers": list(report.integers),
        "in_floats": [
            {"operator": left.node, "op": left.op, "reason": left.reason}
            for left in report.in_floats
        ],
        "composites": [
            {"name": c.name, "operators": list(c.operators), "op": c.op, "reason": c.reason}
            for c in report.composites
        ],
        "tuned": [{"operators": list(t.operators), "choice": t.choice} for t in report.tuned],
        "accuracy": None if report.accuracy is None else _accuracy(report.accuracy),
    }


def to_json(report: ReportFields, indent: int | None = None) -> str:
    """`to_dict`, written."""
    return json.dumps(to_dict(report), indent=indent, allow_nan=False)


def _operator(operator: OperatorReport) -> dict[str, Any]:
    return {
        "operator": operator.node,
        "op": operator.op,
        "inputs": list(operator.inputs),
        "outputs": list(operator.outputs),
        "place": operator.place.value,
        "backend": operator.backend,
        "device": operator.device,
        "partition": operator.partition,
        "runs_on": operator.runs_on,
        "code": None if operator.code is None else operator.code.value,
        "reason": operator.reason,
        "seconds": _number(operator.seconds),
        "gain": _number(operator.gain),
    }


def _accuracy(check: AccuracyCheck) -> dict[str, Any]:
    return {
        "outcome": check.outcome.value,
        "runs": check.runs,
        "error": _number(check.error),
        "story": check.story,
        "redone": list(check.redone),
        "inaccurate": [
            {"operator": i.node, "op": i.op, "error": _number(i.error), "reason": i.reason}
            for i in check.inaccurate
        ],
    }


def _number(seconds: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(seconds) if seconds is not None and math.isfinite(seconds) else None
