"""What `tflgpu run -i` takes: files, folders, patterns, videos, a camera, and texts."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import InputError, ModelError, OptionError
from tflgpu.interpreter.named_tensors import converted, fits, named_tensors
from tflgpu.ir.dtypes import Array
from tflgpu.tools.metadata_values import Normalization
from tflgpu.tools.picture import SUFFIXES
from tflgpu.tools.recipe import read_array

_VIDEOS = frozenset({".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v"})


@attrs.frozen
class Item:
    """One thing to run a model on: what `Recipe.prepare` takes, and its name in messages."""

    name: str
    source: Any


@attrs.frozen
class Series:
    """The items that one -i stands for, and how many there are; None where that is not known."""

    items: Iterator[Item]
    count: int | None = 1

    @property
    def is_one(self) -> bool:
        """Whether it is a single file or text, and not a folder with one."""
        return self.count == 1


def assign(given: Sequence[str], details: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """What goes to which input, by its position: in order, or by name where it is NAME=FILE.

    Raises:
        InputError: more files than inputs, or two for one input.
    """
    files: dict[int, str] = {}
    names = [str(d["name"]) for d in details]
    position = 0
    for text in given:
        name, equals, path = text.partition("=")
        if equals and name in names:
            index = names.index(name)
        elif equals and not Path(text).exists():
            raise InputError(
                f"there is no input {name!r}, nor a file {text}; the model has {', '.join(names)}"
            )
        else:
            if position >= len(names):
                raise InputError(
                    f"{len(given)} inputs were given; the model has {', '.join(names)}"
                )
            index, path = position, text
            position += 1
        if index in files:
            raise InputError(f"two files for one input: {files[index]} and {path}")
        files[index] = path
    return files


def series_of(text: str, takes: str) -> Series:
    """What a text after -i stands for: the files of a folder or of a pattern, the lines of a text,
    the frames of a video or a camera; or the one file or text.

    Args:
        text: As the user wrote it.
        takes: What the input takes: "picture", "sound", "text" or "array".

    Raises:
        InputError: a folder or pattern without files, or a video or camera that cannot be read.
    """
    path = Path(text)
    if _exists(path):
        if path.is_dir():
            suffixes = {*SUFFIXES, ".npy", ".wav"} | ({".txt"} if takes == "text" else set())
            files = (p for p in path.rglob("*") if p.suffix.lower() in suffixes)
            return _files(sorted(files), f"{text} has no files that can be read")
        if path.suffix.lower() in _VIDEOS:
            return Series(_frames(_opened_video(text), text), None)
        if path.suffix.lower() == ".txt" and takes == "text":
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            items = [Item(f"{text}:{i}", line) for i, line in enumerate(lines, 1) if line.strip()]
            return Series(iter(items), len(items))
        return Series(iter([Item(text, path)]))
    kind, _, number = text.partition(":")
    if kind == "camera" and (number.isdigit() or not number):
        return Series(_frames(_opened_camera(int(number or 0)), text), None)
    if takes == "text":
        return Series(iter([Item(text, text)]))
    if glob.has_magic(text):
        found = sorted(map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207  (absolute ones)
        return _files([p for p in found if p.is_file()], f"no file is called like {text}")
    raise InputError(f"there is no file {text}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that is longer than any name
        return False


def _files(paths: Sequence[Path], none: str) -> Series:
    if not paths:
        raise InputError(none)
    # A pattern of one file is a series too: what is printed does not hang on what is there.
    return Series((Item(str(p), p) for p in paths), len(paths) if len(paths) > 1 else None)


def _av(what: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise InputError(f"reading {what} takes PyAV; run: pip install av") from error
    return av


def _opened_video(path: str) -> Any:
    av = _av(f"the video {path}")
    try:
        return av.open(path)
    except (av.FFmpegError, OSError) as error:
        raise InputError(f"the video {path} cannot be read: {error}") from error


def _opened_camera(number: int) -> Any:
    where = {"linux": ("v4l2", f"/dev/video{number}"), "darwin": ("avfoundation", str(number))}
    if sys.platform not in where:
        raise InputError("a camera is read on Linux and macOS; record a video, and give its file")
    kind, name = where[sys.platform]
    if kind == "v4l2" and not Path(name).exists():
        raise InputError(f"there is no camera {name}; plug one in, or give a video's file")
    av = _av(f"the camera {name}")
    try:
        return av.open(name, format=kind)
    except (av.FFmpegError, OSError) as error:
        raise InputError(f"the camera {name} cannot be read: {error}") from error


def _frames(container: Any, name: str) -> Iterator[Item]:
    with container:
        try:
            for number, frame in enumerate(container.decode(video=0)):
                at = number if frame.time is None else round(frame.time, 3)
                yield Item(f"{name}@{at}", frame.to_image())
        except (OSError, IndexError, ValueError) as error:
            raise InputError(f"{name} cannot be read further: {error}") from error


def load(path: str | Path, detail: Mapping[str, Any]) -> Array:
    """The contents of a .npy file, as an input's type and, where that is fixed, shape.

    Raises:
        InputError: no such file, not readable, or it does not fit the input.
    """
    return _fit(read_array(path), Path(path), detail)


def _fit(array: Array, path: Path, detail: Mapping[str, Any]) -> Array:
    (port,) = named_tensors([detail], {})
    if port.dtype.kind == "S" and array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    fixed = port.open_shape if len(port.open_shape) == len(port.shape) else port.shape
    if not fits(array.shape, fixed):
        raise InputError(
            f"{path} has shape {list(array.shape)}, but input {port.name} has {list(fixed)}"
        )
    try:
        return np.ascontiguousarray(converted(port, array))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def pixel_numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """The value of --mean or --std.

    Raises:
        OptionError: no numbers, or a deviation of 0.
    """
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
        Normalization((0.0,), numbers) if flag == "--std" else Normalization(numbers, (1.0,))
    except (ValueError, ModelError) as error:
        raise OptionError(
            f"{flag} {text}: it takes a number, or one for each channel (R,G,B); finite, and "
            "--std not 0"
        ) from error
    return numbers
