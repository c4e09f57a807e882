"""From a graph to what a device loads: one function, `tflgpu.compiler.compile.compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflgpu.compiler.parts import Compiled
    from tflgpu.compiler.target import Target
    from tflgpu.ir.graph import Graph


def compile_graph(graph: Graph, target: Target) -> Compiled:
    """`tflgpu.compiler.compile.compile`, imported when it is called: a start from a kept model
    compiles nothing."""
    from tflgpu.compiler.compile import compile as compile_now

    return compile_now(graph, target)
