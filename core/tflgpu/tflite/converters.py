"""Converters at a model's edges: operators that are put before an input or after an output.

    u8 [1, 480, 640, 4] -> CAST -> SLICE -> RESIZE_BILINEAR -> SUB -> MUL -> f32 [1, 257, 257, 3]
    f32 [1, 257, 257, 21] -> ARG_MAX -> CAST -> u8 [1, 257, 257]

What they make is a model with other inputs and outputs, of builtin operators only. So they run
where the model runs, as kernels of its first and last part, and any runtime for `.tflite` files
takes the model and computes the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import InputError, ModelError, OptionError
from tflgpu.errors.blame import Failed, attempt, listed, shown
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Shape
from tflgpu.tflite.edge_edit import EdgeEdit, FromSomething, Step, ToSomething
from tflgpu.tflite.read import read_model
from tflgpu.tflite.write import write_model

_SLICED = ("DHWC4", "PHWC4")


@attrs.frozen(eq=False)
class FromFloats:
    """An input of f32 in the place of a quantized one."""

    def given(self, shape: Shape) -> tuple[Shape, DType]:
        """The same shape, as f32."""
        return shape, DType.F32

    def steps(self, shape: Shape) -> list[Step]:
        """None but QUANTIZE, which follows every converter there."""
        return []


@attrs.frozen(eq=False)
class ToFloats:
    """An output of f32 in the place of a quantized one."""

    def steps(self, shape: Shape) -> list[Step]:
        """None but DEQUANTIZE, which comes before every converter there."""
        return []


@attrs.frozen(eq=False)
class FromBytes:
    """An input of u8 in the place of f32: ``(x - mean) * scale``.

    Attributes:
        mean, scale: A number, or one for each channel (the last dimension).
    """

    mean: Any = 0.0
    scale: Any = 1.0

    def given(self, shape: Shape) -> tuple[Shape, DType]:
        """The same shape, as u8."""
        return shape, DType.U8

    def steps(self, shape: Shape) -> list[Step]:
        """CAST, then SUB and MUL where they change anything."""
        return [_cast(DType.U8, DType.F32, shape), *_scaled(self.mean, self.scale, shape)]


@attrs.frozen(eq=False)
class FromImage:
    """An image of u8, such as RGBA, in the place of an f32 one: cut out, resized (bilinear, with
    the centres of pixels on each other), its first channels taken, then ``(x - mean) * scale``.

    Attributes:
        height, width: Of the image that is given.
        channels: How many it has; the tensor may have fewer.
        crop: Top, left, height and width of what is taken of it; None for all.
        mean, scale: As in `FromBytes`.
    """

    height: int
    width: int
    channels: int = 4
    crop: tuple[int, int, int, int] | None = None
    mean: Any = 0.0
    scale: Any = 1.0

    def given(self, shape: Shape) -> tuple[Shape, DType]:
        """An image of the size that is given, as u8."""
        batch = _image("FromImage", shape)[0]
        return (batch, self.height, self.width, self.channels), DType.U8

    def steps(self, shape: Shape) -> list[Step]:
        """CAST, then SLICE, RESIZE_BILINEAR, SUB and MUL where they change anything."""
        batch, height, width, taken = shape
        top, left, tall, wide = self.crop or (0, 0, self.height, self.width)
        numbers = (top, left, tall, wide, self.height, self.width, self.channels)
        if any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise OptionError(f"FromImage takes whole numbers, not {shown(numbers)}")
        inside = 0 <= top <= top + tall <= self.height and 0 <= left <= left + wide <= self.width
        if not inside or tall < 1 or wide < 1:
            raise OptionError(
                f"FromImage: the crop {shown(self.crop)} (top, left, height, width) is not "
                f"inside an image of {self.height} x {self.width}"
            )
        if self.channels < taken:
            raise OptionError(
                f"FromImage: an image of {self.channels} channels for a tensor of {taken}"
            )
        whole, cut = (batch, self.height, self.width, self.channels), (batch, tall, wide, taken)
        found = [_cast(DType.U8, DType.F32, whole)]
        if cut != whole:
            found.append(_slice((0, top, left, 0), cut))
        if (tall, wide) != (height, width):
            size = np.array([height, width], np.int32)
            centres = {"align_corners": False, "half_pixel_centers": True}
            found.append(Step("RESIZE_BILINEAR", shape, DType.F32, centres, (size,)))
        return [*found, *_scaled(self.mean, self.scale, shape)]


@attrs.frozen(eq=False)
class FromLayout:
    """An f32 image given in another layout than BHWC.

    Attributes:
        layout: "DHWC4" or "PHWC4", which are one: ``[ceil(channels / 4), height, width, 4]``, of
            batch
            1. What lies in channels that the tensor does not have is not read.
    """

    layout: str = "DHWC4"

    def given(self, shape: Shape) -> tuple[Shape, DType]:
        """The shape in the other layout, as f32."""
        return _sliced(self.layout, shape), DType.F32

    def steps(self, shape: Shape) -> list[Step]:
        """TRANSPOSE and RESHAPE, then SLICE where channels are dropped."""
        slices, height, width, _ = _sliced(self.layout, shape)
        whole = (1, height, width, 4 * slices)
        found = [_transpose((1, 2, 0, 3), (height, width, slices, 4)), _reshape(whole)]
        if whole != shape:
            found.append(_slice((0, 0, 0, 0), shape))
        return found


@attrs.frozen(eq=False)
class ToLayout:
    """An f32 image taken in another layout than BHWC, as `FromLayout`. Channels that the tensor
    does not have are zero."""

    layout: str = "DHWC4"

    def steps(self, shape: Shape) -> list[Step]:
        """PAD where channels are missing, RESHAPE and TRANSPOSE."""
        slices, height, width, _ = _sliced(self.layout, shape)
        whole = (1, height, width, 4 * slices)
        found = []
        if whole != shape:
            missing = np.array([[0, 0], [0, 0], [0, 0], [0, whole[3] - shape[3]]], np.int32)
            found.append(Step("PAD", whole, constants=(missing,)))
        apart = _reshape((height, width, slices, 4))
        return [*found, apart, _transpose((2, 0, 1, 3), (slices, height, width, 4))]


@attrs.frozen(eq=False)
class ToClasses:
    """In an output's place the index of its largest element, by ARG_MAX, along a dimension.

    Attributes:
        axis: The dimension, which is dropped; from the end where it is negative.
        dtype: "u8" (of up to 256 classes) or "i32".
    """

    axis: int = -1
    dtype: str = "u8"

    def steps(self, shape: Shape) -> list[Step]:
        """ARG_MAX, then CAST for u8."""
        if self.dtype not in ("u8", "i32"):
            raise OptionError(f"ToClasses: dtype is 'u8' or 'i32', not {shown(self.dtype)}")
        if not isinstance(self.axis, int) or not -len(shape) <= self.axis < len(shape):
            raise OptionError(f"ToClasses: {listed(shape)} has no dimension {shown(self.axis)}")
        axis = self.axis % len(shape)
        if self.dtype == "u8" and shape[axis] > 256:
            raise OptionError(f"ToClasses: {shape[axis]} classes are too many for u8; take 'i32'")
        rest = shape[:axis] + shape[axis + 1 :]
        where = np.array(axis, np.int32)
        fields = {"output_type": DType.I32.tflite}
        found = [Step("ARG_MAX", rest, DType.I32, fields, (where,))]
        return found if self.dtype == "i32" else [*found, _cast(DType.I32, DType.U8, rest)]


@attrs.frozen(eq=False)
class ToBytes:
    """An output of u8 in the place of f32: ``round(x / scale) + zero_point``, from 0 to 255, as
    QUANTIZE does it (halves away from zero). It is a quantized tensor then, with these parameters
    in its details."""

    scale: float = 1.0
    zero_point: int = 0

    def steps(self, shape: Shape) -> list[Step]:
        """QUANTIZE."""
        scale = float(_numbers("scale", self.scale, 1)[0])
        if not scale > 0:
            raise OptionError(f"ToBytes: scale is {shown(self.scale)}, not a number above 0")
        zero = self.zero_point
        if isinstance(zero, bool) or not isinstance(zero, int) or not 0 <= zero <= 255:
            raise OptionError(f"ToBytes: zero_point is {shown(zero)}, not from 0 to 255")
        quantization = Quantization((scale,), (zero,))
        return [Step("QUANTIZE", shape, DType.U8, quantization=quantization)]


def converted(
    model: str | os.PathLike[str] | bytes,
    *,
    inputs: Mapping[str | int, FromSomething] | None = None,
    outputs: Mapping[str | int, ToSomething] | None = None,
) -> bytes:
    """A model with converters at inputs and outputs, which keep their names and places.

    Args:
        model: Path of a `.tflite` file, or what is in it.
        inputs: Converters by the tensor's name (in the file, or in a signature) or index.
        outputs: Likewise.

    Raises:
        ModelError: no such file, no well-formed model, or it has what cannot be written again.
        InputError: no such input or output, or one that is neither f32 nor quantized, or of a
            shape that the converter is not for.
        OptionError: a converter's numbers make no sense.
    """
    file = read_model(model if isinstance(model, bytes) else os.fspath(model))
    gaps = [o for s in file.subgraphs for o in s.operators if o.gap]
    if gaps:
        raise ModelError(
            f"operator {gaps[0].index} ({gaps[0].name}) cannot be written again: {gaps[0].gap}"
        )
    edit = EdgeEdit(file)
    for which, give in (inputs or {}).items():
        edit.put_before(edit.found(which, is_input=True), give)
    for which, take in (outputs or {}).items():
        edit.put_after(edit.found(which, is_input=False), take)
    return write_model(edit.spec())


def _cast(source: DType, target: DType, shape: Shape) -> Step:
    fields = {"in_data_type": source.tflite, "out_data_type": target.tflite}
    return Step("CAST", shape, target, fields)


def _slice(begin: Sequence[int], size: Shape) -> Step:
    return Step("SLICE", size, constants=(np.array(begin, np.int32), np.array(size, np.int32)))


def _reshape(shape: Shape) -> Step:
    return Step("RESHAPE", shape, constants=(np.array(shape, np.int32),))


def _transpose(order: Sequence[int], shape: Shape) -> Step:
    return Step("TRANSPOSE", shape, constants=(np.array(order, np.int32),))


def _scaled(mean: Any, scale: Any, shape: Shape) -> list[Step]:
    channels = shape[-1] if shape else 1
    offset, factor = _numbers("mean", mean, channels), _numbers("scale", scale, channels)
    found = []
    if offset.any():
        found.append(Step("SUB", shape, constants=(offset,)))
    if (factor != 1).any():
        found.append(Step("MUL", shape, constants=(factor,)))
    return found


def _numbers(what: str, value: Any, channels: int) -> Array:
    """One number for all channels, or one for each.

    Raises:
        OptionError: another count, or not finite numbers.
    """
    found = attempt(np.asarray, value, np.float32)
    if isinstance(found, Failed) or not np.isfinite(found).all():
        raise OptionError(f"{what} is a finite number or one for each channel, not {shown(value)}")
    array: Array = found.reshape(-1)
    if array.size not in (1, channels) or found.ndim > 1:
        raise OptionError(f"{what} is one number or {channels}, not {array.size}")
    return array


def _image(who: str, shape: Shape) -> Shape:
    if len(shape) != 4:
        raise InputError(f"{who} is for images of 4 dimensions, not {listed(shape)}")
    return shape


def _sliced(layout: str, shape: Shape) -> Shape:
    if layout not in _SLICED:
        raise OptionError(f"layout is one of {', '.join(_SLICED)}, not {shown(layout)}")
    batch, height, width, channels = _image(layout, shape)
    if batch != 1:
        raise InputError(f"{layout} is for a batch of 1, not {listed(shape)}")
    return -(-channels // 4), height, width, 4
