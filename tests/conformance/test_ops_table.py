"""The page of operators is what the definitions say, and a measured one what a report says."""

from __future__ import annotations

from pathlib import Path

from tflgpu.conformance.ops_table import defined_page, measured_page
from tflgpu.ops.registry import builtin_ops

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def test_the_page_is_up_to_date() -> None:
    hint = "run: python -m tflgpu.conformance.ops_table docs/ops.md"
    assert PAGE.read_text(encoding="utf-8") == defined_page(), hint


def test_an_op_without_kernels_is_listed_as_such() -> None:
    lines = defined_page([builtin_ops()["RANK"], builtin_ops()["RELU"]]).splitlines()
    assert lines[-1].startswith("| RELU | 1") and lines[-1].endswith("| full | full |  |")
    assert "| none | full | there is no GPU kernel for RANK |" in lines[-2]


def test_a_measured_page_has_a_column_a_backend() -> None:
    device = {"device": {"name": "a card", "driver": "1.2"}}
    report = {
        "backends": {"b": device, "a": device},
        "ops": {
            "ADD": {
                "a": {"support": "full", "reasons": []},
                "b": {"support": "partial", "reasons": ["x | y"]},
            }
        },
    }
    page = measured_page(report).splitlines()
    assert "| Operator | a | b | Reasons |" in page
    assert page[-1] == "| ADD | full | partial | x \\| y |"
