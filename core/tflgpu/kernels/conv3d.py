"""CONV_3D and CONV_3D_TRANSPOSE: one invocation for four channels of a voxel. Sums are in f32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import and_

from tflgpu.kernels.activation import activate
from tflgpu.kernels.conv import floats_only
from tflgpu.kernels.operands import read_bias
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.ops.conv3d import ROLES, Volume, volume_of
from tflgpu.values import frozen


@frozen
class _Voxel:
    """An invocation's place in the result, and its sums."""

    k: Builder
    source: ReadView
    weights: ReadView
    volume: Volume
    batch: Expr
    at: Sequence[Expr]
    slice: Expr
    sums: Variable

    @contextmanager
    def taps(self) -> Iterator[tuple[Expr, Sequence[Expr]]]:
        """All taps, one after the other: which it is among all, and in each direction."""
        depth, height, width = self.volume.taps
        k = self.k
        with k.loop(0, depth * height, name="i") as i, k.loop(0, width, name="j") as j:
            tap = k.let(i * width + j, "tap")
            yield tap, [k.let(i // height, "z"), k.let(i % height, "y"), j]

    def position(self, index: Sequence[Expr], sizes: Sequence[int]) -> Expr:
        """Where a voxel lies in its tensor; outside there is some that exists."""
        found = self.batch
        for i, size in zip(index, sizes, strict=True):
            found = found * size + self.k.clamp(i, 0, size - 1)
        return self.k.let(found, "voxel")

    def _inside(self, index: Sequence[Expr], sizes: Sequence[int]) -> Expr:
        inside = ((i >= 0) & (i < size) for i, size in zip(index, sizes, strict=True))
        return self.k.let(reduce(and_, inside), "inside")

    def gather(self) -> None:
        """Add the products of every tap with the voxel that it sees, zeros outside among them."""
        k, volume = self.k, self.volume
        with self.taps() as (tap, indices):
            seen = [
                k.let(at * stride - pad + i * dilation, "seen")
                for at, i, stride, dilation, pad in zip(
                    self.at, indices, volume.strides, volume.dilations, volume.pads, strict=True
                )
            ]
            inside = self._inside(seen, volume.large)
            voxel = self.position(seen, volume.large)
            inner = self.source.channels
            with k.loop(0, inner, name="c") as c:
                value = k.cast(self.source.load_lane(voxel, c), Scalar.F32)
                value = k.let(k.select(inside, value, 0.0), "x")
                weight = k.cast(self.weights.load(tap * inner + c, self.slice), Scalar.F32)
                k.fma_to(self.sums, k.splat(value, 4), k.let(weight, "w"))

    def scatter(self, channels: int) -> None:
        """Add the products of the voxels whose taps land here."""
        k, volume = self.k, self.volume
        with self.taps() as (tap, indices):
            ways = [
                k.let(at + pad - i * dilation, "way")
                for at, i, dilation, pad in zip(
                    self.at, indices, volume.dilations, volume.pads, strict=True
                )
            ]
            # Before the first voxel quotients round up to it, so the way itself is looked at.
            seen = [k.let(way // s, "seen") for way, s in zip(ways, volume.strides, strict=True)]
            inside = self._inside(seen, volume.small)
            for way, there, stride in zip(ways, seen, volume.strides, strict=True):
                inside = inside & (way >= 0) & (there * stride).eq(way)
            with k.if_(inside):
                voxel = self.position(seen, volume.small)
                rows = [
                    k.let(tap * channels + k.min(self.slice * 4 + lane, channels - 1), "row")
                    for lane in range(4)
                ]
                with k.loop(0, self.source.slices, name="s") as s:
                    value = k.let(k.cast(self.source.load(voxel, s), Scalar.F32), "x")
                    products = [
                        k.dot(value, k.cast(self.weights.load(row, s), Scalar.F32)) for row in rows
                    ]
                    k.add_to(self.sums, k.vec(products))


def _build(low: Lowering) -> None:
    node, roles = low.node, ROLES[low.node.op]
    volume, channels = volume_of(node), node.outputs[0].shape[4]
    k = low.kernel(node.op.lower())
    source, weights = low.read(k, roles.source), low.read(k, roles.weights)
    bias = read_bias(low, k, roles.bias, channels)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        batch, *at = decompose(k, outer, node.outputs[0].shape[:4])
        sums = k.var(bias(slice_), "sums")
        voxel = _Voxel(k, source, weights, volume, batch, at, slice_, sums)
        if node.op == "CONV_3D":
            voxel.gather()
        else:
            voxel.scatter(channels)
        out.store(outer, slice_, activate(k, low.attrs.activation, k.let(sums, "total")))


RULES = (
    KernelRule("CONV_3D", "voxels", _build, takes(FLOATS)),
    # The first operand is the size of the result.
    KernelRule("CONV_3D_TRANSPOSE", "voxels", _build, partial(floats_only, first=1)),
)
