"""A session without a device: the CPU side runs everything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.parts import Part
from tflgpu.compiler.references import reference_support
from tflgpu.compiler.report_of import cpu_report, placed, with_numerics
from tflgpu.compiler.stored_numbers import integer_node
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.passes.float_view import float_view
from tflgpu.runtime.cpu_parts import CpuLoader
from tflgpu.runtime.session import Session, make_variables


def open_cpu_session(
    graph: Graph,
    ops: Mapping[str, OpDef],
    *,
    preserve_all: bool = False,
    side: CpuSide | None = None,
    numerics: Numerics = Numerics.FLOAT,
    reason: str = "no delegate was given",
    code: ReasonCode = ReasonCode.NO_DELEGATE,
) -> Session:
    """A session that runs everything on the CPU.

    Where ``side`` takes the whole model, or all of it that has quantized tensors, it runs these as
    the file has them. Otherwise, as with the NumPy references alone, quantized models run in their
    float view, where ``numerics`` does not ask for integers; where it does, the references are what
    computes so.

    With ``preserve_all`` every tensor keeps its contents after a run. The report gives ``reason``,
    of the kind ``code``, for every operator.

    Raises:
        UnsupportedError: an operator that neither the CPU side nor a reference runs; lists all
            such, with reasons.
        DeviceError: the CPU side that was asked for cannot run here.
    """
    refuse_unknown(graph, "the CPU cannot run")
    report = cpu_report(graph, reason, code)
    variables = make_variables(graph)
    loader = CpuLoader(side, ops, variables)
    is_integer = numerics is Numerics.INTEGER
    tries = bool(graph.nodes) and not is_integer
    whole = loader.load_whole(_part(graph, preserve_all)) if tries else None
    if whole is not None:
        parts = [whole]
    elif tries and side is not None and _leaves_no_quantized(graph, side, ops):
        parts = loader.load(_part(graph, preserve_all))
    else:
        wanted = partial(integer_node, ops=ops, refusal=partial(reference_support, ops=ops))
        view = float_view(
            graph, ops, keep_stored=preserve_all, in_integers=wanted if is_integer else None
        )
        report = with_numerics(report, graph, view.integers, view.in_floats)
        graph = view.graph
        parts = loader.load(_part(graph, preserve_all))
    return Session(graph, parts, placed(report, loader.placed), variables)


def open_as_it_is(
    graph: Graph, ops: Mapping[str, OpDef], *, preserve_all: bool = False, side: CpuSide | None
) -> Session:
    """A session that runs a graph on the CPU node by node, without a float view of it.

    Raises:
        UnsupportedError, DeviceError: as `open_cpu_session`.
    """
    variables = make_variables(graph)
    loader = CpuLoader(side, ops, variables)
    parts = loader.load(_part(graph, preserve_all)) if graph.nodes else []
    report = cpu_report(graph, "no delegate was given", ReasonCode.NO_DELEGATE)
    return Session(graph, parts, placed(report, loader.placed), variables)


def _leaves_no_quantized(graph: Graph, side: CpuSide, ops: Mapping[str, OpDef]) -> bool:
    """Whether the nodes that the CPU side refuses have no quantized tensors: NumPy runs them as
    they are in the file."""
    if side.device is None:
        return False
    refused = [node for node in graph.nodes if side.device.supports(node, ops) is not None]
    values = [v for node in refused for v in (*node.inputs, *node.outputs) if v is not None]
    return all(value.quant is None and value.packed is None for value in values)


def _part(graph: Graph, preserve_all: bool) -> Part:
    """A graph as one part; with all its results at its edge where they are to be kept."""
    produced = {v.id: v for n in graph for v in n.outputs}
    outputs = [v for v in graph.outputs if v.id in produced]
    if preserve_all:
        outputs += [v for v in produced.values() if not graph.is_output(v)]
    return Part(tuple(graph.nodes), False, tuple(graph.inputs), tuple(outputs))
