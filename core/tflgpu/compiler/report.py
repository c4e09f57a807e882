"""What went where, and why not: the answer to "was my model delegated?".

`report_of` makes a report of a compiled graph; `report_table` shows it.
"""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from tflgpu.compiler.report_values import (
    AccuracyCheck,
    CompositeReport,
    InFloats,
    OperatorReport,
    PartitionReport,
    Refusal,
    ReportFields,
    TunedDispatch,
)
from tflgpu.errors import UnsupportedError
from tflgpu.values import frozen

# The types of a report's fields, by which its annotations are read.
__all__ = [
    "AccuracyCheck",
    "CompositeReport",
    "DelegationReport",
    "InFloats",
    "OperatorReport",
    "PartitionReport",
    "Refusal",
    "TunedDispatch",
    "insist",
    "tell",
]

#: Changes where a field goes or means something else; new fields leave it as it is.
VERSION = 1
#: Its own, so that a program that shows the report can turn the sentence off and keep the rest of
#: the log.
TOLD = logging.getLogger("tflgpu.delegation")


@frozen
class DelegationReport(ReportFields):
    """Where the operators of a model run: the fields of `ReportFields`, and ways to show them."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for other programs: docs/report.md lists the fields. They
        stay as they are; ``version`` changes where one means something else."""
        return {
            "version": VERSION,
            "summary": self.summary,
            "total_operators": self.total_nodes,
            "delegated_operators": self.delegated_nodes,
            "fully_delegated": self.fully_delegated,
            "backend": self.backend,
            "device": self.device,
            "precision": self.precision,
            "choice": list(self.choice),
            "partitioning": self.partitioning,
            "partitioning_reason": self.partitioning_reason,
            "estimates": self.estimates,
            "measured": self.measured,
            "seconds": _number(self.seconds),
            "cpu_seconds": _number(self.cpu_seconds),
            "dispatches": self.dispatches,
            "partitions": [
                {
                    "number": part.number,
                    "operators": list(part.operators),
                    "dispatches": part.dispatches,
                    "seconds": _number(part.seconds),
                    "gain": _number(part.gain),
                }
                for part in self.parts
            ],
            "operators": [_operator(operator) for operator in self.operators],
            "integers": list(self.integers),
            "in_floats": [
                {"operator": left.node, "op": left.op, "reason": left.reason}
                for left in self.in_floats
            ],
            "composites": [
                {"name": c.name, "operators": list(c.operators), "op": c.op, "reason": c.reason}
                for c in self.composites
            ],
            "tuned": [{"operators": list(t.operators), "choice": t.choice} for t in self.tuned],
            "accuracy": None if self.accuracy is None else _accuracy(self.accuracy),
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON of the standard, without NaN; on one line unless ``indent`` says how
        far its levels are apart."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def table(self, *, every: bool = False) -> Any:
        """The report as a table of rich's, to print: a line for all operators that one thing became
        of, or with ``every`` a line for each operator."""
        from tflgpu.compiler.report_table import table

        return table(self, every=every)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from tflgpu.compiler.report_table import to_html

        return to_html(self)


def tell(report: DelegationReport) -> None:
    """Say it in the log where less than all is delegated, as TFLite's delegate does."""
    if report.refusals:
        TOLD.warning("tflgpu: %s", report.sentence)


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
