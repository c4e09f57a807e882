"""What to feed a model from the command line: .npy files, images, or random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tflgpu.cli.install import packages_of, pip_install
from tflgpu.errors import InputError
from tflgpu.ir.dtypes import Array

#: PIL modes by number of channels.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@attrs.frozen
class Normalization:
    """How pixels of 0 to 255 become floats: (pixel - mean) / std."""

    mean: float = 127.5
    std: float = 127.5


def assign(
    given: Sequence[str], details: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], Path | None]]:
    """Which file goes to which input: by position, or by name where it is NAME=FILE.

    Raises:
        InputError: more files than inputs, or two for one input.
    """
    files: dict[int, Path] = {}
    names = {str(d["name"]): d for d in details}
    position = 0
    for text in given:
        name, equals, path = text.partition("=")
        if equals and name in names:
            index = int(names[name]["index"])
        elif equals and not Path(text).exists():
            raise InputError(
                f"there is no input {name!r}, nor a file {text}; the model has {', '.join(names)}"
            )
        else:
            if position >= len(details):
                listed = ", ".join(names)
                raise InputError(f"{len(given)} inputs were given; the model has {listed}")
            index, path = int(details[position]["index"]), text
            position += 1
        if index in files:
            raise InputError(f"two files for one input: {files[index]} and {path}")
        files[index] = Path(path)
    return [(d, files.get(int(d["index"]))) for d in details]


def load(path: Path, detail: Mapping[str, Any], normalization: Normalization) -> Array:
    """The contents of a file, as an input's type and, where that is fixed, shape.

    Raises:
        InputError: no such file, not readable, or it does not fit the input.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix.lower() == ".npy":
        return _fit(_load_npy(path), path, detail)
    return _load_image(path, detail, normalization)


def _load_npy(path: Path) -> Array:
    try:
        loaded: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a .npy file that can be read: {error}") from error
    return loaded


def _fit(array: Array, path: Path, detail: Mapping[str, Any]) -> Array:
    wanted = np.dtype(detail["dtype"])
    if wanted.kind == "S" and array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InputError(
            f"{path} holds {array.dtype}, but input {detail['name']} is {wanted}; convert it first"
        )
    signature = [int(s) for s in detail["shape_signature"]]
    shape = [int(s) for s in detail["shape"]]
    fixed = signature if len(signature) == len(shape) else shape
    fits = len(array.shape) == len(fixed) and all(
        s in (-1, n) for s, n in zip(fixed, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{path} has shape {list(array.shape)}, but input {detail['name']} has {fixed}"
        )
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(array.astype(wanted, copy=False))
    # Of floats digits are lost at most, whole numbers stay what they are.
    same = (
        np.array_equal(np.isinf(made), np.isinf(array))
        if wanted.kind in "fc"
        else np.array_equal(made, array)
    )
    if not same:
        raise InputError(
            f"{path} holds {array.dtype}, and input {detail['name']} is {wanted}, which cannot "
            "store all of its values"
        )
    return made


def _load_image(path: Path, detail: Mapping[str, Any], normalization: Normalization) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        command = pip_install(packages_of("tflgpu", "image") or ["pillow"])
        raise InputError(f"reading the image {path} takes Pillow; run: {command}") from error
    shape = tuple(int(s) for s in detail["shape"])
    if len(shape) != 4 or shape[0] != 1 or shape[3] not in _MODES:
        raise InputError(
            f"{path}: input {detail['name']} has shape {list(shape)}, which takes no image; "
            "an image needs [1, height, width, 1, 3 or 4 channels]. Give a .npy file"
        )
    height, width, channels = shape[1:]
    try:
        with Image.open(path) as image:
            resized = image.convert(_MODES[channels]).resize(
                (width, height), Image.Resampling.BILINEAR
            )
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} is neither a .npy file nor a readable image: {error}") from error
    pixels = np.asarray(resized, np.uint8).reshape(shape)
    return _as_input(pixels, path, detail, normalization)


def _as_input(
    pixels: Array, path: Path, detail: Mapping[str, Any], normalization: Normalization
) -> Array:
    dtype = np.dtype(detail["dtype"])
    if dtype.kind == "f":
        scaled = (pixels.astype(np.float32) - normalization.mean) / normalization.std
        return scaled.astype(dtype)
    if dtype == np.uint8:
        return pixels
    if dtype == np.int8:
        return (pixels.astype(np.int16) - 128).astype(np.int8)
    raise InputError(f"{path}: input {detail['name']} is {dtype}, which takes no image")
