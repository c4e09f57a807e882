"""What stands in for the attributes of an operator that tflgpu cannot compute."""

from __future__ import annotations

import attrs


@attrs.frozen
class UnknownOp:
    """The attributes of a node that neither a device nor the CPU can run.

    A graph with such a node can be built, looked at and reported on; only running the node is an
    error. Whatever handles a node's attributes asks for this type first.

    Attributes:
        reason: What is not understood and why, without the operator's label.
    """

    reason: str


def unknown_reason(attributes: object) -> str | None:
    """Why a node with these attributes cannot be computed at all; None where it can."""
    return attributes.reason if isinstance(attributes, UnknownOp) else None
