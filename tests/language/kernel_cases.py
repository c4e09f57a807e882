"""The table of operations, which the conformance suite ships."""

from __future__ import annotations

from tflgpu.conformance.node_table import (
    COUNT,
    GROUPS,
    NodeCase,
    build_table,
    expected,
    operands,
    result_of,
    table,
    table_arrays,
    ulps,
)

__all__ = [
    "COUNT", "GROUPS", "NodeCase", "build_table", "expected", "operands", "result_of", "table",
    "table_arrays", "ulps",
]  # fmt: skip
