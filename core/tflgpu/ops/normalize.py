"""MEAN_STDDEV_NORMALIZATION: instance, layer and group normalization without scale and shift.

Not a TFLite op. A pass makes it of the MEAN, SQUARED_DIFFERENCE, RSQRT chains that converters
write for normalization layers: ``y = (x - mean) / sqrt(variance + epsilon)``, with mean and
(population) variance taken over ``axes``.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import take_operands
from tflgpu.ops.base import Accuracy, Arg, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import FLOATS, check_dtype, reference_of
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import each_row
from tflgpu.ops.reduce import reduced_axes

NAME = "MEAN_STDDEV_NORMALIZATION"


@attrs.frozen
class MeanStddev:
    """The axes that are normalized over (negative = from the back) and what is added to the
    variance."""

    axes: tuple[int, ...]
    epsilon: float


def _infer(attributes: MeanStddev, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(NAME, operands, 1)
    check_dtype(NAME, x.dtype, FLOATS)
    if not reduced_axes(NAME, attributes.axes, x.rank):
        raise ModelError(f"{NAME}: no axis to normalize over")
    return [x.spec]


def _normalize(attributes: MeanStddev, x: Array) -> Array:
    axes = reduced_axes(NAME, attributes.axes, x.ndim)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    variance = np.square(centred).mean(axes, keepdims=True)
    # Squares beyond f32 are infinite, as in the chain of ops that this one stands for.
    spread = variance.astype(np.float32).astype(np.float64)
    return np.asarray(centred / np.sqrt(spread + attributes.epsilon))


def _samples() -> list[Sample]:
    def sample(name: str, shape: Shape, *axes: int, low: float = -2, high: float = 3) -> Sample:
        count = 1
        for axis in reduced_axes(NAME, axes, len(shape)):
            count *= shape[axis]
        arg = Arg(shape, low=low, high=high)
        return Sample.of(name, MeanStddev(axes, 1e-5), arg, accumulates=count)

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
    ]


def _batch(node: Node, items: Items) -> Batched | str:
    rank = len(node.input(0).shape)
    if 0 in reduced_axes(NAME, node.attrs.axes, rank):
        return "it works along axis 0, on which the items lie"
    return each_row(0)(node, items)


OPS = (
    OpDef(
        NAME,
        graph_attributes,
        _infer,
        reference_of(NAME, _normalize),
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        batch=_batch,
    ),
)
