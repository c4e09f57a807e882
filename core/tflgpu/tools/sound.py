"""Sounds as inputs: WAV files, sample rates, and windows of a model's length."""

from __future__ import annotations

import os
import wave
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from tflgpu.errors import InputError
from tflgpu.ir.dtypes import Array
from tflgpu.tools.port import ModelPort

#: The least length of a row of floats that is taken for a sound.
_LEAST = 4000


@frozen(eq=False)
class Sound:
    """A sound of one channel: f32 ``samples`` from -1 to 1, ``rate`` of them a second."""

    samples: Array
    rate: int


def read_sound(path: str | os.PathLike[str]) -> Sound:
    """A WAV file of whole numbers of 8 to 32 bits; several channels become their mean.

    Raises:
        InputError: no such file, or no such WAV file.
    """
    try:
        with wave.open(os.fspath(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            content = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(
            f"{os.fsdecode(path)} is no WAV file of whole numbers that can be read: {error}; "
            "convert it, for example by: ffmpeg -i FILE -c:a pcm_s16le sound.wav"
        ) from error
    content = content[: len(content) // (width * channels) * width * channels]
    if not content or rate <= 0:
        raise InputError(f"{os.fsdecode(path)} has no samples")
    whole = np.frombuffer(content, np.uint8).reshape(-1, width)
    if width == 1:
        real = (whole[:, 0].astype(np.float32) - 128) / 128
    else:  # the highest bytes of numbers of 32 bits
        wide = np.zeros((len(whole), 4), np.uint8)
        wide[:, 4 - width :] = whole
        real = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return Sound(real.reshape(-1, channels).mean(1, dtype=np.float32), rate)


def resampled(sound: Sound, rate: int) -> Sound:
    """A sound at another rate, by its spectrum; what the rate cannot hold is left out."""
    count = max(1, round(len(sound.samples) * rate / sound.rate))
    if rate == sound.rate:
        return sound
    spectrum = np.fft.rfft(sound.samples)
    made = np.fft.irfft(spectrum[: count // 2 + 1], count) * (count / len(sound.samples))
    return Sound(made.astype(np.float32), rate)


def window_length(shape: Sequence[int]) -> int | None:
    """How many samples an input of this shape takes, -1 for any number; None for no sound."""
    others = [n for n in shape if n != 1]
    return others[0] if len(others) == 1 else (-1 if len(shape) == 1 else None)


def is_sound(port: ModelPort) -> bool:
    """Whether an input is one of sounds: its metadata say so, or it is a long row of floats."""
    length = window_length(port.open_shape)
    is_long = length is not None and length >= _LEAST
    return port.said.content == "audio" or (
        is_long and (port.dtype.kind == "f" or port.dtype == np.int16)
    )


def windows(sound: Sound, port: ModelPort) -> list[tuple[float, Array]]:
    """The windows of a sound, each as the input's array, and when it begins, in seconds. The last
    is filled up with silence.

    Raises:
        InputError: an input that takes no sound.
    """
    length = window_length(port.open_shape)
    if length is None or port.dtype.kind not in "fiu":
        raise InputError(
            f"input {port.name} has shape {list(port.open_shape)}, which takes no sound; it needs "
            "one row of samples. Give a .npy file"
        )
    samples = sound.samples
    size = len(samples) if length == -1 else length
    count = -(-len(samples) // size)
    padded = np.pad(samples, (0, count * size - len(samples))).reshape(count, size)
    shape = [size if n == length else 1 for n in port.open_shape]
    return [
        (i * size / sound.rate, _stored(row, port).reshape(shape)) for i, row in enumerate(padded)
    ]


def _stored(samples: Array, port: ModelPort) -> Any:
    if port.dtype == np.int16 and not port.scale:
        return np.rint(samples * 32767).astype(np.int16)
    return port.stored(samples)
