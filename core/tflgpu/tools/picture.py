"""Pictures as inputs: which axis is which, how a picture is fitted, how pixels become numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from tflgpu.errors import InputError, OptionError
from tflgpu.ir.dtypes import Array
from tflgpu.tools.metadata_values import Normalization
from tflgpu.tools.port import ModelPort

#: PIL modes by number of channels.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_COLOURS = {1: "grey", 3: "RGB", 4: "RGBA"}
#: What a picture becomes that has another shape than the input.
RESIZES = {"stretch": "stretched", "crop": "cropped", "pad": "padded"}
#: Pixels to numbers from -1 to 1, which most float models of pictures take.
GUESS = Normalization((127.5,), (127.5,))
#: Suffixes of files of pictures.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_BILINEAR = 2  # `PIL.Image.Resampling.BILINEAR`
_LEAST = 8  # of the sides of an input that is taken for a picture


@frozen
class ImageLayout:
    """Where an input has a picture's rows, columns and channels.

    Attributes:
        height, width: Sizes, or -1 where the model leaves them open.
        channels: 1, 3 or 4.
        order: "HWC", "CHW", "HW", or "flat" for one row of numbers.
    """

    height: int
    width: int
    channels: int
    order: str

    @classmethod
    def of(cls, shape: Sequence[int]) -> ImageLayout | None:
        """The layout of an input of this shape, -1 for open sizes; None where it takes no picture:
        [1,H,W,C], [1,C,H,W], [1,H,W], [H,W,C], [H,W], and one row of k*k or k*k*3 numbers."""
        inner = tuple(shape)
        if len(inner) > 1 and inner[0] in (1, -1):
            inner = inner[1:]
        if len(inner) == 3 and inner[2] in _MODES:
            return cls(inner[0], inner[1], inner[2], "HWC")
        if len(inner) == 3 and inner[0] in _MODES:
            return cls(inner[1], inner[2], inner[0], "CHW")
        if len(inner) == 2:
            return cls(*inner, 1, "HW")
        for channels in (1, 3):
            side = math.isqrt(max(inner[0], 0) // channels) if len(inner) == 1 else 0
            if side >= _LEAST and side * side * channels == inner[0]:
                return cls(side, side, channels, "flat")
        return None

    @property
    def is_likely(self) -> bool:
        """Whether an input that has it is one of pictures."""
        return self.order in ("HWC", "CHW") and all(
            n == -1 or n >= _LEAST for n in (self.height, self.width)
        )


@frozen(eq=False)
class Fitted:
    """A picture as an input has it.

    Attributes:
        image: The picture before, upright.
        pixels: u8 [height, width, channels], as large as the input.
        region: Left, top, width and height of what the input shows, in pixels of the picture.
        said: What was done.
    """

    image: Any
    pixels: Array
    region: tuple[float, float, float, float]
    said: str

    def on_picture(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Where points are in the picture that are given in the input, from 0 to 1."""
        left, top, width, height = self.region
        return left + x * width, top + y * height


def read_picture(source: Any) -> Any:
    """A PIL image, upright as its camera says, from a path, a file's bytes, an image, or u8 [H,W]
    or [H,W,1 to 4].

    Raises:
        InputError: it is no picture that can be read, or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise InputError(
            f"reading the image {_shown(source)} takes Pillow; run: pip install pillow"
        ) from error
    if isinstance(source, np.ndarray):
        is_flat = source.ndim == 3 and source.shape[2] == 1
        pixels = source[..., 0] if is_flat else source
        if source.dtype != np.uint8 or (pixels.ndim != 2 and pixels.shape[2:] not in ((3,), (4,))):
            raise InputError(
                f"an array {source.dtype}{list(source.shape)} is no picture; give uint8 [height, "
                "width, 3]"
            )
        return Image.fromarray(pixels)
    try:
        if isinstance(source, Image.Image):
            return ImageOps.exif_transpose(source)
        is_bytes = isinstance(source, bytes)
        if not is_bytes and not Path(source).is_file():
            raise InputError(f"there is no file {source}")
        with Image.open(io.BytesIO(source) if is_bytes else source) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
    except (
        OSError,
        TypeError,
        UnidentifiedImageError,
        Image.DecompressionBombError,
        SyntaxError,
    ) as error:
        raise InputError(
            f"{_shown(source)} is neither a .npy file nor a readable image: {error}"
        ) from error
    if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        return Image.fromarray(
            (np.asarray(upright, np.float32) / 257).clip(0, 255).astype(np.uint8)
        )
    return upright


def _shown(source: Any) -> str:
    return f"a file of {len(source):,} bytes" if isinstance(source, bytes) else str(source)


def fit(image: Any, layout: ImageLayout, size: tuple[int, int], resize: str) -> Fitted:
    """A picture at an input's size, by bilinear interpolation.

    Args:
        image: As `read_picture` gives it.
        layout: Of the input.
        size: Width and height where the model leaves them open; zeros for the picture's own.
        resize: One of `RESIZES`: the whole picture whatever its shape, its middle, or the whole
            with black edges.
    """
    width = layout.width if layout.width > 0 else size[0] or image.width
    height = layout.height if layout.height > 0 else size[1] or image.height
    left, top, shown_w, shown_h = 0.0, 0.0, float(image.width), float(image.height)
    if resize != "stretch":
        choose = min if resize == "crop" else max
        scale = choose(image.width / width, image.height / height)
        shown_w, shown_h = width * scale, height * scale
        left, top = (image.width - shown_w) / 2, (image.height - shown_h) / 2
    coloured = image.convert(_MODES[layout.channels])
    if resize == "pad":
        inner = max(1, round(image.width / scale)), max(1, round(image.height / scale))
        left, top = -((width - inner[0]) // 2), -((height - inner[1]) // 2)
        # What is cropped outside of a picture is black.
        box = (left, top, left + width, top + height)
        resized = coloured.resize(inner, _BILINEAR).crop(box)
    else:
        box = (left, top, left + shown_w, top + shown_h)
        resized = coloured.resize((width, height), _BILINEAR, box)
    pixels = np.asarray(resized, np.uint8).reshape(height, width, layout.channels)
    said = f"{image.width}x{image.height}"
    if (width, height) != image.size:
        said += f" {RESIZES[resize]} to {width}x{height} (bilinear)"
    said += f", {_COLOURS[layout.channels]}"
    return Fitted(image, pixels, (left, top, shown_w, shown_h), said)


def numbers_of(
    pixels: Array, port: ModelPort, layout: ImageLayout, normalization: Normalization | None
) -> tuple[Array, str]:
    """An input's array of pixels, and what was done to them.

    Without a ``normalization`` floats are from -1 to 1, u8 are the pixels, i8 the pixels less 128.

    Raises:
        InputError: a type that takes no picture.
        OptionError: a normalization for another number of channels, or of stored numbers without
            a scale.
    """
    dtype = port.dtype
    if dtype.kind != "f" and dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
        raise InputError(f"input {port.name} is {dtype}, which takes no image")
    if normalization is None and dtype.kind != "f":
        less = 128 if dtype == np.int8 else 0
        stored = (pixels.astype(np.int16) - less).astype(dtype)
        return _laid_out(stored, layout, port), "pixels as they are" + " less 128" * bool(less)
    rule = normalization or GUESS
    for numbers in (rule.mean, rule.std):
        if len(numbers) not in (1, layout.channels):
            raise OptionError(
                f"{len(numbers)} numbers for mean or std, but input {port.name} has "
                f"{layout.channels} channels; give one, or one for each"
            )
    mean, std = np.array(rule.mean, np.float32), np.array(rule.std, np.float32)
    real = (pixels.astype(np.float32) - mean) / std
    ends = (np.array([[0], [255]], np.float32) - mean) / std
    said = f"pixels to {ends.min():.4g} .. {ends.max():.4g} (mean {_list(rule.mean)}, std "
    said += f"{_list(rule.std)})"
    return _laid_out(port.stored(real), layout, port), said


def _list(numbers: Sequence[float]) -> str:
    return ",".join(f"{n:.6g}" for n in numbers)


def _laid_out(pixels: Array, layout: ImageLayout, port: ModelPort) -> Array:
    """[H,W,C] in the order and with the axes of an input."""
    ordered = pixels.transpose(2, 0, 1) if layout.order == "CHW" else pixels
    sizes = ordered.shape if layout.order in ("HWC", "CHW") else ordered.shape[:2]
    if layout.order == "flat":
        sizes = (ordered.size,)
    ones = len(port.open_shape) - len(sizes)
    return np.ascontiguousarray(ordered).reshape((1,) * ones + sizes)
