"""CONV_3D and CONV_3D_TRANSPOSE (TFLite version 1): windows that slide through volumes.

Volumes are NDHWC. CONV_3D: input, filter [depth, height, width, in, out], and a bias that may be
absent; there are no groups. The other:
output shape, filter [depth, height, width, out, in], input, bias; its padding is that of the
convolution from output to input, whose size must be the input's. Voxel z of the input adds its
products with tap i to voxel ``z * stride - pad + i * dilation`` of the output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.activation import fused_clamp
from tflgpu.ops.axes import const_integers, integers, present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    OnDevice,
    OpDef,
    Operands,
    Padding,
    Sample,
)
from tflgpu.ops.facets import Batched, Filter, Items, Work
from tflgpu.ops.items import each_row, first_size, rows_of
from tflgpu.ops.positions import of_items
from tflgpu.ops.products import check_bias, finish, floats, needed, take
from tflgpu.ops.windows import out_and_pad
from tflgpu.values import frozen

Size3 = tuple[int, int, int]
_PLAIN, _TURNED = "CONV_3D", "CONV_3D_TRANSPOSE"
#: As TFLite, devices count positions in signed 32-bit numbers.
_MAX_REACH = 2**31 - 1


@frozen
class Conv3D:
    """Options, by the schema's names."""

    stride_d: int
    stride_h: int
    stride_w: int
    dilation_d_factor: int
    dilation_h_factor: int
    dilation_w_factor: int
    padding: Padding
    activation: Activation

    @property
    def strides(self) -> Size3:
        """Along the depth, the height and the width."""
        return self.stride_d, self.stride_h, self.stride_w

    @property
    def dilations(self) -> Size3:
        """In the same order."""
        return self.dilation_d_factor, self.dilation_h_factor, self.dilation_w_factor


@frozen
class Volume:
    """A window in a volume: voxel p of the small side and tap i meet at voxel
    ``p * stride - pad + i * dilation`` of the large one, in each of three directions."""

    taps: Size3
    strides: Size3
    dilations: Size3
    pads: Size3
    large: Size3
    small: Size3


#: Which operand is what.
ROLES = {
    _PLAIN: Filter(source=0, weights=1, bias=2, out=4),
    _TURNED: Filter(source=2, weights=1, bias=3, out=3),
}


def _parse(fields: Fields) -> Conv3D:
    def size(name: str, default: int = 0) -> int:
        return fields.integer(name, default, minimum=1)

    return Conv3D(
        size("stride_d"),
        size("stride_h"),
        size("stride_w"),
        size("dilation_d_factor", 1),
        size("dilation_h_factor", 1),
        size("dilation_w_factor", 1),
        fields.padding(),
        fused_clamp(fields),
    )


def place(op: str, attributes: Conv3D, large: Sequence[int], taps: Sequence[int]) -> Volume:
    """The window of so many ``taps`` in a volume; the triples are sizes.

    Raises:
        ModelError: it does not fit, so that nothing is left.
    """
    small, pads = [], []
    for size, count, stride, dilation in zip(
        large, taps, attributes.strides, attributes.dilations, strict=True
    ):
        span = (count - 1) * dilation + 1
        out, pad = out_and_pad(size, span, stride, attributes.padding)
        if out < 1 or max((out - 1) * stride, size) + span > _MAX_REACH:
            raise ModelError(
                f"{op}: a filter of {count} taps (over {span}) on a volume of {size} with "
                f"{attributes.padding.name} padding leaves nothing, or too much"
            )
        small.append(out)
        pads.append(pad)
    return Volume(
        tuple(taps),  # type: ignore[arg-type]
        attributes.strides,
        attributes.dilations,
        tuple(pads),  # type: ignore[arg-type]
        tuple(large),  # type: ignore[arg-type]
        tuple(small),  # type: ignore[arg-type]
    )


def volume_of(node: Node) -> Volume:
    """The window of a node of either op."""
    taps = node.input(1).shape[:3]
    large = node.input(0).shape if node.op == _PLAIN else node.outputs[0].shape
    return place(node.op, node.attrs, large[1:4], taps)


def _infer(attributes: Conv3D, operands: Operands) -> list[TensorSpec]:
    given = take(_PLAIN, operands, ("input", "filter", "bias"), optional=1)
    x = needed(_PLAIN, given[0], "input", 5, batch=1)
    weights = needed(_PLAIN, given[1], "filter", 5, beside=x)
    *taps, inner, outs = weights.shape
    if x.shape[4] != inner:
        raise ModelError(f"{_PLAIN}: the filter has {inner} input channels, the input {x.shape[4]}")
    check_bias(_PLAIN, given[2], outs)
    found = place(_PLAIN, attributes, x.shape[1:4], taps)
    return [TensorSpec((x.shape[0], *found.small, outs), x.dtype)]


def _infer_turned(attributes: Conv3D, operands: Operands) -> list[TensorSpec]:
    names = ("output shape", "filter", "input", "bias")
    shape, filters, source, bias = take(_TURNED, operands, names, optional=1)
    x, weights = needed(_TURNED, source, "input", 5), needed(_TURNED, filters, "filter", 5)
    assert shape is not None
    *taps, outs, inner = weights.shape
    if x.shape[4] != inner:
        raise ModelError(
            f"{_TURNED}: the filter has {inner} input channels, the input {x.shape[4]}"
        )
    check_bias(_TURNED, bias, outs)
    output = const_integers(_TURNED, shape, "output shape (operand 0)", 5)
    if min(output) < 1 or (output[0], output[4]) != (x.shape[0], outs):
        raise ModelError(
            f"{_TURNED}: output shape {list(output)} does not fit a batch of {x.shape[0]} and "
            f"{outs} output channels of the filter"
        )
    found = place(_TURNED, attributes, output[1:4], taps)
    if found.small != x.shape[1:4]:
        raise ModelError(
            f"{_TURNED}: the input is {list(x.shape[1:4])} voxels large; output shape "
            f"{list(output)} asks for {list(found.small)}"
        )
    return [TensorSpec(output, x.dtype)]


def _meetings(volume: Volume) -> Iterator[tuple[Size3, tuple[slice, ...], tuple[slice, ...]]]:
    """Each tap with the voxels of the large and of the small side that meet in it."""
    for tap in itertools.product(*map(range, volume.taps)):
        large, small = [], []
        for i, stride, dilation, pad, size, count in zip(
            tap,
            volume.strides,
            volume.dilations,
            volume.pads,
            volume.large,
            volume.small,
            strict=True,
        ):
            shift = i * dilation - pad
            first = max(0, -(shift // stride))
            last = min(count - 1, (size - 1 - shift) // stride)
            n = max(0, last - first + 1)
            small.append(slice(first, first + n))
            start = first * stride + shift
            large.append(slice(start, start + (n - 1) * stride + 1, stride) if n else slice(0))
        yield tap, tuple(large), tuple(small)  # type: ignore[misc]


def _reference(attributes: Conv3D, arrays: Arrays) -> list[Array]:
    x, weights = floats(_PLAIN, arrays[0]), floats(_PLAIN, arrays[1])
    volume = place(_PLAIN, attributes, x.shape[1:4], weights.shape[:3])
    sums = np.zeros((x.shape[0], *volume.small, weights.shape[4]), x.dtype)
    for tap, large, small in _meetings(volume):
        there, here = (slice(None), *small), (slice(None), *large)
        sums[there] += x[here] @ weights[tap]
    if not np.isfinite(weights).all():
        _add_padding(sums, weights, volume)
    bias = arrays[2] if len(arrays) > 2 else None
    return [finish(sums, bias, attributes.activation, arrays[0])]


def _add_padding(sums: Array, weights: Array, volume: Volume) -> None:
    """What zeros around a volume add: NaN, where a weight is not finite."""
    for tap, _, small in _meetings(volume):
        outside = np.ones(volume.small, np.bool_)
        outside[small] = False
        sums[:, outside] += np.where(
            np.isfinite(weights[tap]).all(0), np.float32(0), np.float32(np.nan)
        )


def _reference_turned(attributes: Conv3D, arrays: Arrays) -> list[Array]:
    output = integers(present(arrays[0]))
    weights, x = floats(_TURNED, arrays[1]), floats(_TURNED, arrays[2])
    volume = place(_TURNED, attributes, output[1:4], weights.shape[:3])
    sums = np.zeros(output, x.dtype)
    for tap, large, small in _meetings(volume):
        there, here = (slice(None), *large), (slice(None), *small)
        sums[there] += x[here] @ weights[tap].T
    bias = arrays[3] if len(arrays) > 3 else None
    return [finish(sums, bias, attributes.activation, arrays[2])]


def _fields(
    strides: Size3, dilations: Size3, padding: Padding, activation: Activation
) -> dict[str, int]:
    found = {"padding": padding.value, "fused_activation_function": activation.value}
    for axis, stride, dilation in zip("dhw", strides, dilations, strict=True):
        found |= {f"stride_{axis}": stride, f"dilation_{axis}_factor": dilation}
    return found


def _case(
    id: str,
    volume: Shape,
    filter: Shape,
    *,
    strides: Size3 = (1, 1, 1),
    dilations: Size3 = (1, 1, 1),
    padding: Padding = Padding.SAME,
    activation: Activation = Activation.NONE,
    bias: bool = True,
    const: bool = True,
    output: Size3 | None = None,
) -> Sample:
    fields = _fields(strides, dilations, padding, activation)
    outs = filter[4] if output is None else filter[3]
    operands = [Arg(filter, const=const), *([Arg((outs,), const=const)] if bias else [])]
    if output is None:
        args = (Arg(volume), *operands)
    else:
        shape = Arg.of((volume[0], *output, outs), DType.I32)
        args = (shape, operands[0], Arg(volume), *operands[1:])
    return Sample(id, fields, args, accumulates=math.prod(filter[:4]))


def _samples() -> list[Sample]:
    valid = Padding.VALID
    return [
        _case("plain", (1, 3, 5, 7, 3), (3, 3, 3, 3, 5)),
        _case("aligned", (1, 4, 5, 6, 4), (2, 2, 2, 4, 8), activation=Activation.RELU),
        _case("valid", (2, 4, 5, 3, 2), (2, 3, 2, 2, 3), padding=valid, bias=False),
        _case("strides", (1, 5, 7, 6, 3), (3, 2, 3, 3, 4), strides=(2, 3, 1)),
        _case("dilated", (1, 7, 5, 9, 2), (2, 2, 3, 2, 5), dilations=(3, 1, 2), padding=valid),
        _case("pointwise", (1, 2, 3, 5, 7), (1, 1, 1, 7, 3), activation=Activation.RELU6),
        _case("runtime_filter", (1, 3, 5, 4, 3), (2, 2, 2, 3, 5), const=False),
    ]


def _turned_samples() -> list[Sample]:
    valid = Padding.VALID
    return [
        _case("same", (1, 2, 3, 4, 3), (3, 3, 3, 5, 3), strides=(2, 2, 2), output=(4, 5, 8)),
        _case("valid", (1, 2, 3, 2, 4), (2, 3, 2, 8, 4), strides=(1, 2, 2), padding=valid,
              output=(3, 7, 4), bias=False),
        _case("stride1", (2, 3, 2, 5, 5), (2, 3, 2, 3, 5), output=(3, 2, 5),
              activation=Activation.RELU),
        _case("dilated", (1, 2, 3, 3, 2), (2, 2, 2, 3, 2), dilations=(2, 1, 2), padding=valid,
              output=(4, 4, 5)),
        _case("runtime_filter", (1, 2, 2, 3, 3), (2, 2, 2, 6, 3), strides=(2, 2, 2),
              output=(4, 4, 6), const=False),
    ]  # fmt: skip


def _work(node: Node) -> Work:
    """Every voxel of the smaller side meets each tap."""
    small = node.outputs[0] if node.op == _PLAIN else node.input(2)
    outs = node.input(1).shape[4 if node.op == _PLAIN else 3]
    inner = node.input(1).shape[3 if node.op == _PLAIN else 4]
    taps = math.prod(node.input(1).shape[:3])
    return Work.of(node, 2 * math.prod(small.shape[:4]) * taps * outs * inner)


def _batch_turned(node: Node, items: Items) -> Batched | str:
    return rows_of(node, items, (2,)) or first_size(node, items, 0)


OPS = (
    OpDef(
        _PLAIN, _parse, _infer, _reference, _samples, accuracy=Accuracy.ACCUMULATE,
        arithmetic=Arithmetic(activation_field="activation", filter=ROLES[_PLAIN]),
        device=OnDevice(work=_work), batch=each_row(0), positions=of_items
    ),
    OpDef(
        _TURNED, _parse, _infer_turned, _reference_turned, _turned_samples,
        accuracy=Accuracy.ACCUMULATE,
        arithmetic=Arithmetic(activation_field="activation", filter=ROLES[_TURNED]),
        device=OnDevice(work=_work), batch=_batch_turned
    ),
)  # fmt: skip
