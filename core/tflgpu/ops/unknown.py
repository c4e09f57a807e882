"""What stands in for the attributes of an operator that tflgpu cannot compute."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tflgpu.errors import UnsupportedError
from tflgpu.ir.graph import Node


@attrs.frozen
class UnknownOp:
    """The attributes of a node that neither a device nor the CPU can run.

    A graph with such a node can be built, looked at and reported on; only running the node is an
    error. Whatever handles a node's attributes asks for this type first.

    Attributes:
        reason: What is not understood and why, without the operator's label.
        dynamic: Whether it would be understood if something were known before the model runs.
    """

    reason: str
    dynamic: bool = False


def unknown_reason(attributes: object) -> str | None:
    """Why a node with these attributes cannot be computed at all; None where it can."""
    return attributes.reason if isinstance(attributes, UnknownOp) else None


def refuse_unknown(nodes: Iterable[Node], where: str) -> None:
    """Refuse a graph with nodes that nothing can run, before anything is done with it.

    The shapes of such nodes' results, and of all that is computed from them, are placeholders.

    Raises:
        UnsupportedError: there is such a node; ``where`` ("the CPU cannot run") begins the message,
            which lists them all.
    """
    unknown = [(n, n.attrs) for n in nodes if isinstance(n.attrs, UnknownOp)]
    if not unknown:
        return
    listed = "; ".join(f"{node.label}: {attributes.reason}" for node, attributes in unknown)
    advice = ""
    if any(attributes.dynamic for _, attributes in unknown):
        advice = (
            "; what must be a constant may also be computed from constants and from the shapes of "
            "tensors, but not from their contents: convert the model with fixed shapes"
        )
    raise UnsupportedError(f"{where} {len(unknown)} operators: {listed}{advice}")
