"""RESHAPE, SQUEEZE, EXPAND_DIMS where the channels' padding differs, so that bytes must move."""

from __future__ import annotations

from tflgpu.kernels.moves import accepts_moves, channel_of
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule


def _copy(low: Lowering) -> None:
    k = low.kernel(low.node.op.lower())
    src = low.read(k, 0)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        if src.channels % 4 == 0 and out.channels % 4 == 0:
            i = k.let(outer * out.slices + slice_, "vector")
            value = src.load(i // src.slices, i % src.slices)
        elif src.channels == out.channels:
            value = src.load(outer, slice_)
        else:
            lanes = [
                src.load_flat(
                    k.let(
                        outer * out.channels
                        + channel_of(k, slice_, min(lane, out.channels - 1), out.channels),
                        "flat",
                    )
                )
                for lane in range(4)
            ]
            value = k.vec(lanes)
        out.store(outer, slice_, value)


RULES = tuple(
    KernelRule(op, "copy", _copy, accepts_moves(0), pointwise=True)
    for op in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
)
