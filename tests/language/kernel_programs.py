"""The programs of control flow and memory, which the conformance suite ships."""

from __future__ import annotations

from tflgpu.conformance.programs import (
    PROGRAMS,
    ProgramCase,
    reserved_names,
    shared_subexpressions,
    shared_vectors,
)

__all__ = ["PROGRAMS", "ProgramCase", "reserved_names", "shared_subexpressions", "shared_vectors"]
