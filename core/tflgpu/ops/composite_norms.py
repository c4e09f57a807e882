"""RMS_NORMALIZATION, LAYER_NORMALIZATION and GROUP_NORMALIZATION, the ops of the composites
"odml.rms_norm" and "odml.group_norm", with scale and shift.

Not TFLite ops: they stand for composites of a file (`tflgpu.ops.base.Composed`). The channels are
the last axis. With ``x`` the operand, ``gamma`` and ``beta`` a number a channel (either may be
absent):

    RMS     x / sqrt(mean(x * x) + epsilon) * gamma               over the channels
    layer   (x - mean) / sqrt(variance + epsilon) * gamma + beta  over the channels
    group   the same over groups of neighbouring channels and all axes between first and last

Converters write layer normalization as "odml.group_norm" too, some with attributes that say nothing
of it, so that both are readings of that name. Sources of names and attributes: litert-torch's
`normalization.py`, and LiteRT's `ml_drift_delegate/tflite/support`.
"""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import at_least_f32, present
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Composed,
    Draw,
    Fields,
    FileForm,
    OpDef,
    Operand,
    Operands,
    Reading,
    Sample,
    graph_attributes,
)
from tflgpu.ops.composed import there
from tflgpu.ops.elementwise import FLOATS, check_dtype
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import rows_of
from tflgpu.values import frozen

RMS, LAYER, GROUP = "RMS_NORMALIZATION", "LAYER_NORMALIZATION", "GROUP_NORMALIZATION"

# What two generations of converters call the number that is added to the variance.
_EPSILONS = ("epsilon", "eps")


@frozen
class NormAttrs:
    """``epsilon`` is added to the mean square or the variance; ``groups`` of the channels are
    normalized apart, where it is GROUP_NORMALIZATION."""

    epsilon: float
    groups: int = 1


def _take(op: str, operands: Operands, most: int) -> Operand:
    if not 1 <= len(operands) <= most or operands[0] is None:
        raise ModelError(f"{op} takes 1 to {most} operands, got {len(operands)}")
    x = operands[0]
    check_dtype(op, x.dtype, FLOATS)
    if not x.rank:
        raise ModelError(f"{op}: a single number has no channels")
    for i, operand in enumerate(operands[1:], 1):
        if operand is None:
            continue
        check_dtype(op, operand.dtype, frozenset({x.dtype}))
        if math.prod(operand.shape) != x.shape[-1] or operand.shape[-1:] != x.shape[-1:]:
            raise ModelError(
                f"{op}: operand {i} has shape {list(operand.shape)}, and needs a number for each "
                f"of {x.shape[-1]} channels"
            )
        if operand.rank > x.rank:
            raise ModelError(f"{op}: operand {i} has more axes than {list(x.shape)}")
    return x


def _infer_rms(attributes: NormAttrs, operands: Operands) -> list[TensorSpec]:
    return [_take(RMS, operands, 2).spec]


def _infer_layer(attributes: NormAttrs, operands: Operands) -> list[TensorSpec]:
    return [_take(LAYER, operands, 3).spec]


def _infer_group(attributes: NormAttrs, operands: Operands) -> list[TensorSpec]:
    x = _take(GROUP, operands, 3)
    if x.rank < 2 or x.shape[-1] % attributes.groups:
        raise ModelError(f"{GROUP}: {attributes.groups} groups in {list(x.shape)}")
    return [x.spec]


def _wide(array: Array | None, other: float) -> Array:
    return np.asarray(other if array is None else array.astype(np.float64))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Means in the numbers' own type; sums that f32 does not hold are infinite, as in a chain of
    f32 ops."""
    count = math.prod(x.shape[a] for a in axes)
    total = x.astype(np.float64).sum(axes, keepdims=True).astype(x.dtype)
    return np.asarray((total / x.dtype.type(max(1, count))).astype(x.dtype))


def _scaled(x: Array, factor: Array, arrays: Arrays, dtype: np.dtype) -> Array:
    gamma, beta = (*arrays[1:], None, None)[:2]
    return np.asarray(
        (x.astype(np.float64) * factor * _wide(gamma, 1.0) + _wide(beta, 0.0)).astype(dtype)
    )


def _rms(attributes: NormAttrs, arrays: Arrays) -> list[Array]:
    given = present(arrays[0])
    x = at_least_f32(given)
    square = _mean(x * x, (x.ndim - 1,)).astype(np.float64)
    return [_scaled(x, 1 / np.sqrt(square + attributes.epsilon), arrays, given.dtype)]


def _centred(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """``x`` less its mean, and what that is multiplied by."""
    gap = x - _mean(x, axes)
    variance = _mean(gap * gap, axes).astype(np.float64)
    return gap, 1 / np.sqrt(variance + epsilon)


def _layer(attributes: NormAttrs, arrays: Arrays) -> list[Array]:
    given = present(arrays[0])
    x = at_least_f32(given)
    gap, factor = _centred(x, (x.ndim - 1,), attributes.epsilon)
    return [_scaled(gap, factor, arrays, given.dtype)]


def _group(attributes: NormAttrs, arrays: Arrays) -> list[Array]:
    given = present(arrays[0])
    groups, shape = attributes.groups, given.shape
    per_group = shape[-1] // groups
    pixels = math.prod(shape[1:-1])
    x = at_least_f32(given).reshape(shape[0], pixels, groups, per_group)
    gap, factor = _centred(x, (1, 3), attributes.epsilon)
    whole = np.broadcast_to(factor, x.shape).reshape(shape)
    return [_scaled(gap.reshape(shape), whole, arrays, given.dtype)]


def _epsilon(fields: Fields) -> float:
    for name in _EPSILONS:
        if name in fields.values:
            return fields.number(name)
    raise UnsupportedError("it has no attribute epsilon")


def _read_rms(fields: Fields, operands: Operands) -> list[Reading]:
    there(operands, 1, 2)
    return [Reading(NormAttrs(_epsilon(fields)))]


def _read_layer(fields: Fields, operands: Operands) -> list[Reading]:
    there(operands, 1, 3)
    if fields.integer("num_groups", 1) != 1 or fields.integer("sub_type", 1) != 1:
        raise UnsupportedError("it has several groups")
    return [Reading(NormAttrs(_epsilon(fields)))]


def _read_group(fields: Fields, operands: Operands) -> list[Reading]:
    x = there(operands, 1, 3)[0]
    if fields.integer("sub_type", 0) != 0:
        raise UnsupportedError("it is another kind of normalization")
    if fields.integer("channel_axis", x.rank - 1) not in (-1, x.rank - 1):
        raise UnsupportedError("its channels are not the last axis")
    return [Reading(NormAttrs(_epsilon(fields), fields.integer("num_groups", 1, minimum=1)))]


_GROUP_ATTRIBUTES = frozenset(
    {
        *_EPSILONS,
        "num_groups",
        "channel_axis",
        "reduction_axes",
        "sub_type",
        "_TENSOR_V1_reduction_axes",
    }
)


def _sample(
    name: str, shape: Shape, more: int, *, groups: int = 1, low: float = -2.0, high: float = 3.0
) -> Sample:
    count = shape[-1] // groups * (math.prod(shape[1:-1]) if groups > 1 else 1)
    scales = tuple(Arg(shape[-1:], low=0.5, high=2, const=bool(i % 2)) for i in range(more))
    args = (Arg(shape, low=low, high=high), *scales)
    return Sample.of(name, NormAttrs(1e-5, groups), *args, accumulates=count)


def _rms_samples() -> list[Sample]:
    return [
        _sample("rows", (2, 5, 37), 1),
        _sample("alone", (3, 16), 0),
        _sample("wide", (1, 1027), 1),
        _sample("vector", (7,), 1),
        _sample("heads", (2, 3, 5, 8), 1),
    ]


def _layer_samples() -> list[Sample]:
    return [
        _sample("rows", (2, 5, 37), 2),
        _sample("alone", (3, 16), 0),
        _sample("scale_only", (2, 3, 5, 8), 1),
        _sample("far_from_zero", (1, 515), 2, low=40, high=44),
    ]


def _group_samples() -> list[Sample]:
    return [
        _sample("image", (2, 3, 5, 24), 2, groups=3),
        _sample("alone", (1, 5, 16), 0, groups=4),
        _sample("one_group", (2, 3, 7, 12), 2),
    ]


def _generate_group(draw: Draw) -> Sample:
    groups = draw.integer(1, 4)
    shape = (draw.integer(1, 2), draw.size(9), draw.size(5), 4 * groups * draw.integer(1, 3))
    return _sample("drawn", shape, draw.integer(0, 2), groups=groups)


def _batch(node: Node, items: Items) -> Batched | str:
    """Rows of the operand are made apart, where it has several axes."""
    refused = rows_of(node, items, (0,), 2)
    return Batched(node.attrs) if refused is None else refused


OPS = (
    OpDef(
        RMS, graph_attributes, _infer_rms, _rms, _rms_samples,
        accuracy=Accuracy.ACCUMULATE, batch=_batch,
        file=FileForm(composed=(Composed(("odml.rms_norm",), _read_rms, frozenset(_EPSILONS)),))
    ),
    OpDef(
        LAYER, graph_attributes, _infer_layer, _layer, _layer_samples, accuracy=Accuracy.ACCUMULATE,
        batch=_batch,
        file=FileForm(composed=(
            Composed(("odml.layer_norm", "odml.group_norm"), _read_layer, _GROUP_ATTRIBUTES),
        ))
    ),
    OpDef(
        GROUP, graph_attributes, _infer_group, _group, _group_samples, generate=_generate_group,
        accuracy=Accuracy.ACCUMULATE, batch=_batch,
        file=FileForm(composed=(Composed(("odml.group_norm",), _read_group, _GROUP_ATTRIBUTES),))
    ),
)  # fmt: skip
