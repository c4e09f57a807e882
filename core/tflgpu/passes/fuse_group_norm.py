"""Group normalization becomes MEAN_STDDEV_NORMALIZATION of groups of channels.

PyTorch exports have channels first, and an axis of channels apart for the groups:

    x [n, c, h, w] -> RESHAPE [n, g, c / g, h * w] -> moments m, r = RSQRT(v + epsilon)
    y = ADD(MUL(x, RESHAPE(r * gamma)), RESHAPE(beta - m * r * gamma))

becomes y = ADD(MUL(n, gamma), beta), with the normalized n reshaped to x's shape. Where x was
transposed from [n, h, w, c], so is what is normalized then:

    x [n, h, w, c] -> TRANSPOSE -> RESHAPE -> MEAN_STDDEV_NORMALIZATION -> RESHAPE [n, c, h, w]
    x [n, h, w, c] -> MEAN_STDDEV_NORMALIZATION {groups} -> TRANSPOSE

whose transpositions cancel then (`sink_transposes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain, scalar_of
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.binary import BinaryAttrs
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import reduced_axes
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.transpose import order_of
from tflgpu.passes.base import Pass, PassContext, both_orders, per_node
from tflgpu.passes.fuse_normalization import Layer, Reader, scales


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fuse the chain that ends with a node, or normalize what was transposed."""
    if node.op == NAME:
        return _channels_last(rewriter, node)
    reader = Reader(rewriter, context)
    layer = next(_layers(rewriter, reader, node), None) if is_plain(node) else None
    if layer is None:
        return False
    _write(rewriter, context, node, layer)
    return True


def _layers(rewriter: Rewriter, reader: Reader, last: Node) -> Iterator[Layer]:
    for scaled, shift in both_orders(last):
        product, moved = reader.maker(scaled, "MUL"), rewriter.producer(shift, "RESHAPE")
        if product is None or moved is None:
            continue
        for x, scale in both_orders(product):
            spread = rewriter.producer(scale, "RESHAPE")
            if spread is None or x.shape != last.outputs[0].shape:
                continue
            for found, gamma, nodes in scales(reader, spread.input(0)):
                apart = rewriter.producer(found.x, "RESHAPE")
                rest = _less_mean(reader, moved.input(0), found.mean, spread.input(0))
                if apart is None or apart.input(0) is not x or rest is None:
                    continue
                beta, more = rest
                if _is_of_channels(gamma, spread, x) and _is_of_channels(beta, moved, x):
                    chain = (apart, *found.nodes, *nodes, *more, spread, moved, product, last)
                    ours = [_of_channels(rewriter, *n) for n in ((gamma, spread), (beta, moved))]
                    yield Layer(found, ours[0], ours[1], chain)


def _less_mean(
    reader: Reader, value: Value, mean: Value, scale: Value
) -> tuple[Value, tuple[Node, ...]] | None:
    """What the product of a mean and a scale is taken from to make ``value``, and the nodes."""
    less, total = reader.maker(value, "SUB"), reader.maker(value, "ADD")
    if less is not None:
        product = reader.maker(less.input(1), "MUL")
        fits = product is not None and {id(mean), id(scale)} == {id(v) for v in product.inputs}
        return (less.input(0), (product, less)) if product is not None and fits else None
    for part, beta in both_orders(total) if total is not None else ():
        product = reader.maker(part, "MUL")
        for minus, other in both_orders(product) if product is not None else ():
            negative = reader.maker(minus, "MUL") if other is scale else None
            if total is None or product is None or negative is None:
                continue
            if any(one is mean and scalar_of(n) == -1 for one, n in both_orders(negative)):
                return beta, (negative, product, total)
    return None


def _is_of_channels(value: Value | None, reshape: Node, x: Value) -> bool:
    """Whether a constant has the same numbers for every item, and the RESHAPE brings what it is
    part of to a number for each channel of ``x``."""
    whole, made = reshape.input(0).shape, reshape.outputs[0].shape
    if made != (*x.shape[:2], *(1 for _ in x.shape[2:])) or whole[:1] != x.shape[:1]:
        return False
    if value is None or value.data is None:
        return value is None
    ahead = len(whole) - len(value.shape)
    return bool(np.isfinite(value.data).all()) and (ahead > 0 or value.shape[0] == 1)


def _of_channels(rewriter: Rewriter, value: Value | None, reshape: Node) -> Value | None:
    if value is None or value.data is None:
        return None
    numbers = np.broadcast_to(value.data, (1, *reshape.input(0).shape[1:]))
    return rewriter.const(np.array(numbers.reshape(1, *reshape.outputs[0].shape[1:])), value.name)


def _write(rewriter: Rewriter, context: PassContext, last: Node, layer: Layer) -> None:
    found, (result,) = layer.deviation, last.outputs

    def inserted(op: str, attributes: object, inputs: list[Value], shape: Shape) -> Value:
        origins = merged_origins(*layer.nodes) if op == NAME else last.origins
        spec = shape, result.dtype, f"{result.name}/{op.lower()}"
        return rewriter.result_of(op, attributes, inputs, spec, before=last, origins=origins)

    normalize = MeanStddev(found.axes, found.epsilon)
    value = inserted(NAME, normalize, [found.x], found.x.shape)
    value = inserted("RESHAPE", ReshapeAttrs(result.shape), [value], result.shape)
    if layer.gamma is not None:
        value = inserted("MUL", BinaryAttrs(), [value, layer.gamma], result.shape)
    beta = layer.beta
    if beta is None:
        beta = rewriter.const(np.zeros(1, result.dtype.numpy))
    rewriter.replace([last], "ADD", BinaryAttrs(context.activation_of(last)), [value, beta])


# Channels last


def _channels_last(rewriter: Rewriter, node: Node) -> bool:
    """Normalize what was transposed to have channels first, where that is what a node does."""
    apart = rewriter.producer(node.input(0), "RESHAPE")
    together = rewriter.sole_use(node.outputs[0], "RESHAPE")
    turned = None if apart is None else rewriter.producer(apart.input(0), "TRANSPOSE")
    if apart is None or together is None or turned is None:
        return False
    shape, whole = apart.input(0).shape, node.input(0).shape
    rank = len(shape)
    if rank < 3 or order_of(turned) != (0, rank - 1, *range(1, rank - 1)):
        return False
    if together.outputs[0].shape != shape or not _by_groups(node, shape, whole):
        return False
    source = turned.input(0)
    spec = source.shape, source.dtype, source.name + "/normalized"
    attributes = MeanStddev(tuple(range(1, rank)), node.attrs.epsilon, whole[1])
    origins = merged_origins(apart, node)
    made = rewriter.result_of(NAME, attributes, [source], spec, before=together, origins=origins)
    rewriter.replace([together], "TRANSPOSE", NoAttrs(), [made, turned.input(1)])
    return True


def _by_groups(node: Node, shape: Shape, whole: Shape) -> bool:
    """Whether a node normalizes all of each group, the second axis of ``whole``, of the channels of
    ``shape``, whose kernel takes groups that fill vectors of 4, alone or together."""
    if len(whole) < 3 or whole[0] != shape[0] or shape[1] % math.lcm(4, shape[1] // whole[1]):
        return False
    axes = set(reduced_axes(NAME, node.attrs.axes, len(whole)))
    inside = range(2, len(whole))
    return {axis for axis in inside if whole[axis] != 1} <= axes <= set(inside)


PASS = Pass("fuse_group_norm", per_node(_rewrite, "ADD", NAME))
