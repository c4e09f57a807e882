"""MEAN_STDDEV_NORMALIZATION: instance, layer and group normalization without scale and shift.

Not a TFLite op. A pass makes it of the MEAN, SQUARED_DIFFERENCE, RSQRT chains that converters
write for normalization layers: ``y = (x - mean) / sqrt(variance + epsilon)``, with mean and
(population) variance taken over ``axes``.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import take_operands
from tflgpu.ops.base import Accuracy, Arg, Movement, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import FLOATS, check_dtype, reference_of
from tflgpu.ops.facets import Batched, Items, Reordered
from tflgpu.ops.items import each_row
from tflgpu.ops.reduce import reduced_axes

NAME = "MEAN_STDDEV_NORMALIZATION"


@attrs.frozen
class MeanStddev:
    """What is normalized.

    Attributes:
        axes: That are normalized over (negative = from the back).
        epsilon: Added to the variance.
        groups: Of channels, the last axis, each of which is normalized apart.
    """

    axes: tuple[int, ...]
    epsilon: float
    groups: int = 1

    def grouped(self, shape: Shape) -> tuple[Shape, tuple[int, ...]]:
        """A shape with an axis for the groups of channels, and the axes that are normalized over
        then."""
        axes = reduced_axes(NAME, self.axes, len(shape))
        if self.groups == 1:
            return shape, axes
        last = len(shape) - 1
        whole = (*shape[:-1], self.groups, shape[-1] // self.groups)
        return whole, tuple(axis + (axis == last) for axis in axes)


def _infer(attributes: MeanStddev, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(NAME, operands, 1)
    check_dtype(NAME, x.dtype, FLOATS)
    if not reduced_axes(NAME, attributes.axes, x.rank):
        raise ModelError(f"{NAME}: no axis to normalize over")
    if attributes.groups != 1 and (not x.rank or x.shape[-1] % attributes.groups):
        raise ModelError(f"{NAME}: {attributes.groups} groups of the channels of {x.spec}")
    return [x.spec]


def _normalize(attributes: MeanStddev, x: Array) -> Array:
    shape, axes = attributes.grouped(x.shape)
    wide = x.astype(np.float64).reshape(shape)
    centred = wide - wide.mean(axes, keepdims=True)
    variance = np.square(centred).mean(axes, keepdims=True)
    # Squares beyond f32 are infinite, as in the chain of ops that this one stands for.
    spread = variance.astype(np.float32).astype(np.float64)
    return np.asarray(centred / np.sqrt(spread + attributes.epsilon)).reshape(x.shape)


def _samples() -> list[Sample]:
    def sample(
        name: str, shape: Shape, *axes: int, low: float = -2, high: float = 3, groups: int = 1
    ) -> Sample:
        attributes = MeanStddev(axes, 1e-5, groups)
        whole, reduced = attributes.grouped(shape)
        count = math.prod(whole[axis] for axis in reduced)
        arg = Arg(shape, low=low, high=high)
        return Sample.of(name, attributes, arg, accumulates=count)

    return [
        sample("instance", (1, 5, 7, 6), 1, 2),
        sample("instance_batch", (2, 7, 5, 16), 1, 2),
        sample("instance_large", (1, 47, 53, 10), 1, 2),
        sample("instance_far_from_zero", (1, 31, 37, 3), 1, 2, low=40, high=44),
        sample("layer", (2, 5, 37), -1),
        sample("layer_vector", (3, 256), 1),
        sample("layer_narrow", (1, 5, 7, 3), 3),
        sample("layer_wide", (1, 1027), -1),
        sample("whole_image", (2, 5, 7, 6), 1, 2, 3),
        sample("batch", (3, 5, 7, 6), 0, 1, 2),
        sample("width", (2, 3, 11, 5), 2),
        sample("groups", (2, 3, 5, 24), 1, 2, 3, groups=3),
        sample("groups_large", (1, 47, 53, 16), 1, 2, 3, groups=2),
        sample("groups_of_channels", (3, 16), -1, groups=4),
        sample("groups_of_two", (2, 3, 5, 12), 1, 2, 3, groups=6),
        sample("groups_of_one_large", (1, 47, 53, 8), 1, 2, 3, groups=8),
        sample("groups_of_three", (1, 3, 7, 24), 1, 2, 3, groups=8),
        sample("groups_of_ten_large", (1, 37, 41, 40), 1, 2, 3, groups=4),
    ]


def _batch(node: Node, items: Items) -> Batched | str:
    rank = len(node.input(0).shape)
    if 0 in reduced_axes(NAME, node.attrs.axes, rank):
        return "it works along axis 0, on which the items lie"
    return each_row(0)(node, items)


def _reorder(node: Node, order: tuple[int, ...]) -> Reordered | None:
    axes = reduced_axes(NAME, node.attrs.axes, len(order))
    if node.attrs.groups != 1:
        return None
    moved = tuple(at for at, axis in enumerate(order) if axis in axes)
    return Reordered(attrs.evolve(node.attrs, axes=moved))


OPS = (
    OpDef(
        NAME,
        graph_attributes,
        _infer,
        reference_of(NAME, _normalize),
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        batch=_batch,
        movement=Movement(keeps_values=False, reorder=_reorder),
    ),
)
