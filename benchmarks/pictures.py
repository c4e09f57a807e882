"""Photographs, as inputs of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tflgpu.ir.dtypes import Array

_SUFFIXES = (".jpg", ".jpeg", ".png")


def pictures(folder: Path | None = None) -> list[Image.Image]:
    """Those of a folder; without one, scikit-learn's two, whole and in four quarters each."""
    if folder is not None:
        paths = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in _SUFFIXES]
        if not paths:
            raise SystemExit(f"there is no picture in {folder}")
        return [Image.open(path).convert("RGB") for path in paths]
    try:
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise SystemExit("scikit-learn's photographs: pip install tflgpu[examples]") from error
    found = []
    for pixels in load_sample_images().images:
        image = Image.fromarray(pixels)
        width, height = image.size
        found.append(image)
        found += [
            image.crop((left, top, left + width // 2, top + height // 2))
            for left in (0, width // 2)
            for top in (0, height // 2)
        ]
    return found


def as_input(image: Image.Image, detail: Any) -> Array:
    """A picture in the size and type of an input [1, height, width, 3]; floats are -1 to 1."""
    _, height, width, _ = (int(size) for size in detail["shape"])
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.uint8)[None]
    dtype = np.dtype(detail["dtype"])
    if dtype.kind == "f":
        return (pixels / 127.5 - 1).astype(dtype)
    if dtype == np.int8:
        return (pixels.astype(np.int16) - 128).astype(np.int8)
    return pixels
