"""What went where, and why not: the answer to "was my model delegated?".

`report_of` makes a report of a compiled graph; `report_json`, `report_table` and `report_html` show
it.
"""

from __future__ import annotations

import logging
from typing import Any

from tflgpu.compiler.report_json import to_dict, to_json
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

#: Its own, so that a program that shows the report can turn the sentence off and keep the rest of
#: the log.
TOLD = logging.getLogger("tflgpu.delegation")


@frozen
class DelegationReport(ReportFields):
    """Where the operators of a model run: the fields of `ReportFields`, and ways to show them."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for other programs: docs/report.md lists the fields. They
        stay as they are; ``version`` changes where one means something else."""
        return to_dict(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON of the standard, without NaN; on one line unless ``indent`` says how
        far its levels are apart."""
        return to_json(self, indent)

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
