"""Draws answers on pictures, with Pillow."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tflgpu.ir.dtypes import Array

#: Which of COCO's 17 points of a body are joined.
_BONES = (
    *((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10)),
    *((5, 11), (6, 12), (11, 12), (11, 13), (13, 15), (12, 14), (14, 16)),
)
_Region = tuple[float, float, float, float] | None


def colour(index: int) -> tuple[int, int, int]:
    """A colour for a class: neighbours are far apart."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def picture_of(pixels: Array) -> Any:
    """A PIL image of u8 pixels."""
    return Image.fromarray(pixels)


def with_text(picture: Any, lines: Sequence[str]) -> Any:
    """Lines in the upper left corner."""
    image = picture.convert("RGB")
    draw, font = ImageDraw.Draw(image), _font(image)
    _label(draw, (0, 0), "\n".join(line.strip() for line in lines), (0, 0, 0), font)
    return image


def with_boxes(picture: Any, found: Sequence[Any]) -> Any:
    """The boxes of ``Detection`` values with names and scores, the surest on top."""
    image = picture.convert("RGB")
    draw, font, width = ImageDraw.Draw(image), _font(image), _width(image)
    for d in reversed(found):
        left, top, right, bottom = d.box
        box = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        draw.rectangle(box, outline=colour(d.label.index), width=width)
        text = f"{d.label.name} {100 * d.label.score:.0f} %"
        _label(draw, (max(box[0], 0), max(box[1], 0)), text, colour(d.label.index), font)
    return image


def with_points(picture: Any, points: Sequence[Any], threshold: float) -> Any:
    """``Keypoint`` values, and the lines between them where they are a body's 17."""
    image = picture.convert("RGB")
    draw, width = ImageDraw.Draw(image), _width(image)
    for a, b in _BONES if len(points) == 17 else ():
        if min(points[a].score, points[b].score) >= threshold:
            ends = (points[a].x, points[a].y, points[b].x, points[b].y)
            draw.line(ends, colour(a), width)
    for i, p in enumerate(points):
        if p.score >= threshold:
            r = 2 * width
            draw.ellipse((p.x - r, p.y - r, p.x + r, p.y + r), colour(i), (255, 255, 255))
    return image


def with_classes(picture: Any, classes: Array, names: Mapping[int, str], region: _Region) -> Any:
    """A colour for each class but 0, half transparent, and the names of the classes."""
    found = [int(c) for c in np.unique(classes)]
    layer = np.zeros((*classes.shape, 4), np.uint8)
    for c in found:
        layer[classes == c] = (*colour(c), 150 if c else 0)
    image = _over(picture, layer, region, smooth=False)
    draw, font = ImageDraw.Draw(image), _font(image)
    at = 0.0
    for c in found[:16]:
        if c or len(found) == 1:
            at = _label(draw, (0, at), names[c], colour(c), font)
    return image


def with_heat(picture: Any, confidence: Array, region: _Region) -> Any:
    """From blue for 0 to red for 1, half transparent."""
    heat = np.clip(np.nan_to_num(confidence), 0, 1)
    # The usual ramp: each colour is a trapezoid.
    parts = [np.clip(1.5 - np.abs(4 * heat - centre), 0, 1) for centre in (3, 2, 1)]
    layer = np.stack([*parts, 0.25 + 0.4 * heat], -1)
    return _over(picture, np.rint(255 * layer).astype(np.uint8), region, smooth=True)


def _over(picture: Any, layer: Array, region: _Region, *, smooth: bool) -> Any:
    top = Image.fromarray(layer)
    if picture is None:
        return Image.alpha_composite(Image.new("RGBA", top.size, "black"), top).convert("RGB")
    image = picture.convert("RGBA")
    left, upper, width, height = region or (0, 0, *image.size)
    how = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    resized = top.resize((max(1, round(width)), max(1, round(height))), how)
    whole = Image.new("RGBA", image.size)
    whole.paste(resized, (round(left), round(upper)))
    return Image.alpha_composite(image, whole).convert("RGB")


def _width(image: Any) -> int:
    return max(2, int(max(image.size)) // 250)


def _font(image: Any) -> Any:
    try:
        return ImageFont.load_default(max(12, max(image.size) // 40))
    except TypeError:  # Pillow before 10.1 has one size
        return ImageFont.load_default()


def _label(
    draw: Any, at: tuple[float, float], text: str, background: tuple[int, int, int], font: Any
) -> float:
    """Text on a ground of its own; gives where the next line begins."""
    box = draw.textbbox(at, text, font=font)
    draw.rectangle((at[0], at[1], box[2] + 4, box[3] + 4), background)
    is_dark = 0.3 * background[0] + 0.6 * background[1] + 0.1 * background[2] < 140
    draw.text((at[0] + 2, at[1]), text, "white" if is_dark else "black", font)
    return float(box[3] + 4)
