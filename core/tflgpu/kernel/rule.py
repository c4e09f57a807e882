"""Kernel rules: which generator serves which node on which device.

A kernel family is a module in `tflgpu.kernels` with a module-level ``RULES`` tuple (`KernelRule`
and `ElementwiseRule` values). Nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernel.budget import MAX_BUFFERS
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.lowering import ElementwiseExpr, Lowering, Precision


def _within_budget(caps: DeviceCaps) -> DeviceCaps:
    if caps.max_bindings <= MAX_BUFFERS:
        return caps
    return attrs.evolve(caps, max_bindings=MAX_BUFFERS)


@attrs.frozen
class Site:
    """Where a node would run: what `KernelRule.accepts` may look at besides the node.

    ``caps.max_bindings`` is at most `budget.MAX_BUFFERS`, whatever the device has.
    """

    caps: DeviceCaps = attrs.field(converter=_within_budget)
    precision: Precision


@attrs.frozen
class Unsupported:
    """A "no", with the reason: what, why, and where possible what to do."""

    reason: str


#: None means yes; a string is the reason for no.
Accepts = Callable[[Node, Site], str | None]


def _always(node: Node, site: Site) -> str | None:
    return None


@attrs.frozen
class KernelRule:
    """A generator of kernels for an op.

    Attributes:
        op: Op name.
        name: Unique among the op's rules; shown in plans and profiles.
        build: Writes the node's kernels into a `Lowering`.
        accepts: None where the rule can serve a node there, else the reason why not.
        rank: Of the rules that accept, the highest rank is taken.
        fuses: Whether ``build`` writes output 0 through `Lowering.write`'s view exactly once
            per element, so that elementwise nodes may join its store.
    """

    op: str
    name: str
    build: Callable[[Lowering], None]
    accepts: Accepts = _always
    rank: int = 0
    fuses: bool = True


@attrs.frozen
class ElementwiseRule:
    """An op that is one expression per element: has its own kernel, or joins another's store."""

    op: str
    expr: ElementwiseExpr
    accepts: Accepts = _always


Rule = Union[KernelRule, ElementwiseRule]
