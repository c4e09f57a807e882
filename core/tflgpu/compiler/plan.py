"""A plan: the kernels of a part, the buffers each is bound to, and the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import attrs

from tflgpu.compiler.constants import Constants, constants, firsts
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Shape
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Size3
from tflgpu.values import frozen


@attrs.frozen  # every start compares or shows some
class ArenaRef:
    """``nbytes`` at ``offset`` in an arena (offset is a multiple of `Plan.alignment`).

    What is written through a region is read through an equal one. Regions that overlap otherwise
    hold data at different times, so a device may give each memory of its own.
    """

    offset: int
    nbytes: int
    arena: int = 0


@attrs.frozen  # every start compares or shows some
class ConstRef:
    """`Plan.constants` [index]."""

    index: int


@attrs.frozen  # every start compares or shows some
class InputRef:
    """The buffer of `Plan.inputs` [index]."""

    index: int


@attrs.frozen  # every start compares or shows some
class OutputRef:
    """The buffer of `Plan.outputs` [index]."""

    index: int


Ref = Union[ArenaRef, ConstRef, InputRef, OutputRef]


@frozen
class PlannedDispatch:
    """One launch. ``refs`` are aligned with ``kernel.buffers``.

    ``reads`` and ``writes`` follow from the buffers' access; ``label`` names the node, and
    ``origins`` are the operators of the file that it stands for, by index. ``tuned`` names the
    measured choice by which the kernel was written; "" where it was predicted. ``fewer`` has, for
    each axis along which it changes, how many workgroups make all that counts where 0, 1, 2, ...
    positions do not (`tflgpu.ir.absent`); it is empty where all of them always do.
    """

    kernel: Kernel
    groups: Size3
    refs: tuple[Ref, ...]
    label: str
    origins: tuple[int, ...] = ()
    tuned: str = ""
    fewer: tuple[tuple[int, ...], ...] = ()

    def fitted(self, absent: int) -> PlannedDispatch:
        """With the workgroups that it takes where so many positions do not count."""
        if not self.fewer:
            return self
        x, y, z = (
            counts[min(absent, len(counts) - 1)] if counts else size
            for size, counts in zip(self.groups, self.fewer, strict=True)
        )
        return attrs.evolve(self, groups=(x, y, z))


@frozen
class PlannedIO:
    """An input or output: packed row-major elements of ``dtype``, as NumPy has them."""

    name: str
    shape: Shape
    dtype: DType
    nbytes: int


@frozen
class PlanOutline:
    """What a plan launches, without the contents of its constants.

    Attributes:
        dispatches: The plan's.
        nbytes: Of its constants, inputs and outputs, by the type of what refers to them.
    """

    dispatches: tuple[PlannedDispatch, ...]
    nbytes: Mapping[type, tuple[int, ...]]

    def traffic(self, dispatch: PlannedDispatch) -> int:
        """Bytes of the buffers that a dispatch is bound to, each counted once."""
        return sum(
            ref.nbytes if isinstance(ref, ArenaRef) else self.nbytes[type(ref)][ref.index]
            for ref in dict.fromkeys(dispatch.refs)
        )


def _sizes(arenas: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(arenas, int):
        return (arenas,) if arenas else ()
    return tuple(arenas)


@frozen
class Plan:
    """All that a device needs to run a partition again and again.

    Attributes:
        arenas: Sizes of the buffers that intermediate tensors share: one, or several where one
            would be larger than the device's largest buffer; none without such tensors. A number
            makes one of that size.
        alignment: Every arena offset is a multiple of it.
        constants: Flat arrays, uploaded once.
        inputs, outputs: Buffers of their own, so that they can be mapped or handed over.
        dispatches: In an order that respects every dependency.
    """

    arenas: tuple[int, ...] = attrs.field(converter=_sizes)
    alignment: int
    constants: Constants = attrs.field(converter=constants)
    inputs: tuple[PlannedIO, ...]
    outputs: tuple[PlannedIO, ...]
    dispatches: tuple[PlannedDispatch, ...]

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(self.arenas)

    @property
    def outline(self) -> PlanOutline:
        """What is left of it when it is loaded."""
        edges: dict[type, tuple[int, ...]] = {
            InputRef: tuple(io.nbytes for io in self.inputs),
            OutputRef: tuple(io.nbytes for io in self.outputs),
            ConstRef: self.constants.sizes,
        }
        return PlanOutline(self.dispatches, edges)

    @property
    def own_constants(self) -> tuple[int, ...]:
        """The constants, by index, that no earlier one is equal to: those that need memory."""
        return tuple(i for i, first in enumerate(firsts(self.constants.items)) if i == first)

    @property
    def constant_bytes(self) -> int:
        """Bytes of these."""
        sizes = self.constants.sizes
        return sum(sizes[i] for i in self.own_constants)

    @property
    def edge_bytes(self) -> int:
        """Bytes of inputs and outputs."""
        return sum(io.nbytes for io in (*self.inputs, *self.outputs))

    @property
    def device_bytes(self) -> int:
        """Bytes of all buffers that the kernels are bound to: arenas, constants (once, where
        several are equal), inputs, outputs."""
        return self.arena_bytes + self.constant_bytes + self.edge_bytes
