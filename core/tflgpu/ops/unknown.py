"""What stands in for the attributes of an operator that tflgpu cannot compute."""

from __future__ import annotations

from tflgpu.errors import UnsupportedError
from tflgpu.errors.blame import quoted
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.values import frozen

_ADVICE = (
    "; what must be a constant may also be computed from constants and from the shapes of tensors, "
    "but not from their contents: convert the model with fixed shapes"
)


@frozen
class UnknownOp:
    """The attributes of a node that neither a device nor the CPU can run.

    A graph with such a node can be built, looked at and reported on; only running the node is an
    error. Code that reads a node's attributes checks for this type first.

    Attributes:
        reason: What is not understood and why, without the operator's label.
        dynamic: Whether it would be understood if something were known before the model runs.
        host: Whether an interpreter runs it between graphs.
    """

    reason: str
    dynamic: bool = False
    host: bool = False


@frozen
class ForeignOp(UnknownOp):
    """The attributes of a node that only the CPU side can run, which has kernels of its own for it
    (LiteRT's, say). ``reason`` is why the device and the references cannot. Its results' shapes are
    known."""


def unknown_reason(attributes: object) -> str | None:
    """Why a node with these attributes cannot be computed at all; None where it can."""
    return attributes.reason if isinstance(attributes, UnknownOp) else None


def for_the_host(graph: Graph, *, has_device: bool) -> list[tuple[Node, UnknownOp]]:
    """Operators for which one graph is not enough to run a model, or not the best there is: they
    await what only a run tells, or hand on what a device could compute (`tflgpu.flow`). None where
    one graph is all."""
    unknown = [(n, n.attrs) for n in graph if isinstance(n.attrs, UnknownOp)]
    found = [
        (node, attributes)
        for node, attributes in unknown
        if attributes.host or (attributes.dynamic and not isinstance(attributes, ForeignOp))
    ]
    is_needed = any(not isinstance(attributes, ForeignOp) for _, attributes in found)
    return found if is_needed or has_device else []


def refuse_unknown(graph: Graph, where: str) -> None:
    """Refuse a graph that nothing can run, before anything is done with it.

    The shapes of the results of such nodes, and of all that is computed from them, are
    placeholders.

    Raises:
        UnsupportedError: there is a node that is not understood (by the CPU side neither), or an
            input, output or state tensor has a type without arrays; ``where`` ("the CPU cannot
            run") begins the message, which lists all such nodes.
    """
    unknown = [
        (n, n.attrs)
        for n in graph
        if isinstance(n.attrs, UnknownOp) and not isinstance(n.attrs, ForeignOp)
    ]
    if unknown:
        listed = "; ".join(f"{node.label}: {attributes.reason}" for node, attributes in unknown)
        dynamic = any(attributes.dynamic for _, attributes in unknown)
        raise UnsupportedError(f"{where} {len(unknown)} operators: {listed}{_ADVICE * dynamic}")
    states = [v for v in graph.values.values() if v.is_variable]
    for value in (*graph.inputs, *graph.outputs, *states):
        check_held(value.dtype, value.id, value.name, where)


def check_held(dtype: DType, tensor: int, name: str, where: str, *, texts: bool = False) -> None:
    """That there are arrays of a tensor's type on the host, those of ``texts`` among them.

    Raises:
        UnsupportedError: there are none.
    """
    if not dtype.has_numpy and not (texts and dtype is DType.STRING):
        raise UnsupportedError(
            f"{where} the model: tensor {tensor} ({quoted(name)}) is {dtype.value}, which no "
            "input, output or state tensor can be; convert the model with inputs and outputs of "
            "another type"
        )
