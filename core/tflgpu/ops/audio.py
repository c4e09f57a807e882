"""AudioSpectrogram and Mfcc: TensorFlow's custom ops for sound, version 1.

AudioSpectrogram: samples [samples, channels] -> [channels, frames, bins], the squared magnitudes
(or magnitudes) of the Fourier transforms of overlapping windows, each under a Hann window and
filled with zeros up to a power of two.

Mfcc: squared magnitudes [channels, frames, bins], and the sample rate -> [channels, frames,
coefficients]: magnitudes are added up in triangles that are equally wide on the mel scale, and of
the logarithms of these sums a cosine transform is taken.

As TensorFlow's kernels the references compute in 64-bit floats.
"""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    OnDevice,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.ops.facets import Work
from tflgpu.ops.flexible import read_map, write_map
from tflgpu.values import frozen

SPECTROGRAM, MFCC = "AudioSpectrogram", "Mfcc"
_FLOOR = 1e-12  # of the sums, so that there is a logarithm


@frozen
class Spectrogram:
    """The custom options, by their names there; ``squared`` is magnitude_squared."""

    window_size: int
    stride: int
    squared: bool = False

    @property
    def bins(self) -> int:
        """Frequencies from 0 to half the sample rate."""
        return self.transform // 2 + 1

    @property
    def transform(self) -> int:
        """Samples of a Fourier transform."""
        return 1 << (self.window_size - 1).bit_length()

    def frames(self, samples: int) -> int:
        """Whole windows in so many samples."""
        return max(0, 1 + (samples - self.window_size) // self.stride)

    def window(self) -> Array:
        """The Hann window, f64."""
        turn = 2 * math.pi / self.window_size
        return np.asarray(0.5 - 0.5 * np.cos(turn * np.arange(self.window_size)))


@frozen
class Mfcc:
    """The custom options, by their names there."""

    upper_frequency_limit: float
    lower_frequency_limit: float
    filterbank_channel_count: int
    dct_coefficient_count: int


def _parse_spectrogram(fields: Fields) -> Spectrogram:
    options = read_map(fields)
    return Spectrogram(
        options.integer("window_size", minimum=2),
        options.integer("stride", minimum=1),
        options.flag("magnitude_squared"),
    )


def _parse_mfcc(fields: Fields) -> Mfcc:
    options = read_map(fields)
    found = Mfcc(
        options.number("upper_frequency_limit"),
        options.number("lower_frequency_limit"),
        options.integer("filterbank_channel_count", minimum=1),
        options.integer("dct_coefficient_count", minimum=1),
    )
    if not 0 <= found.lower_frequency_limit < found.upper_frequency_limit < math.inf:
        raise ModelError(
            f"{MFCC}: frequencies from {found.lower_frequency_limit} to "
            f"{found.upper_frequency_limit}"
        )
    if found.dct_coefficient_count > found.filterbank_channel_count:
        raise ModelError(
            f"{MFCC}: {found.dct_coefficient_count} coefficients of "
            f"{found.filterbank_channel_count} channels"
        )
    return found


def _infer_spectrogram(attributes: Spectrogram, operands: Operands) -> list[TensorSpec]:
    (samples,) = take_operands(SPECTROGRAM, operands, 1)
    need_rank(SPECTROGRAM, samples, "samples (operand 0)", 2)
    if samples.dtype is not DType.F32:
        raise ModelError(f"{SPECTROGRAM}: samples of {samples.dtype.value}, f32 needed")
    count, channels = samples.shape
    return [TensorSpec((channels, attributes.frames(count), attributes.bins), DType.F32)]


def _infer_mfcc(attributes: Mfcc, operands: Operands) -> list[TensorSpec]:
    source, rate = take_operands(MFCC, operands, 2)
    need_rank(MFCC, source, "spectrogram (operand 0)", 3)
    if source.dtype is not DType.F32 or rate.dtype is not DType.I32:
        raise ModelError(
            f"{MFCC}: operands are {source.dtype.value} and {rate.dtype.value}, f32 and i32 needed"
        )
    if math.prod(rate.shape) != 1:
        raise ModelError(f"{MFCC}: the sample rate (operand 1) has shape {list(rate.shape)}")
    if rate.data is not None:
        mel_matrix(attributes, source.shape[2], int(rate.data.reshape(())))
    return [TensorSpec((*source.shape[:2], attributes.dct_coefficient_count), DType.F32)]


def _mel(frequency: Array | float) -> Array:
    return np.asarray(1127.0 * np.log1p(np.asarray(frequency, np.float64) / 700.0))


def mel_matrix(attributes: Mfcc, bins: int, rate: int) -> Array:
    """What each bin's magnitude adds to each channel, [bins, channels], f64.

    Raises:
        ModelError: the frequencies are not all in the spectrogram, as LiteRT's kernel has it.
    """
    channels = attributes.filterbank_channel_count
    if rate < 1 or bins < 2:
        raise ModelError(f"{MFCC}: {bins} bins at a sample rate of {rate}")
    low, high = (
        float(_mel(f)) for f in (attributes.lower_frequency_limit, attributes.upper_frequency_limit)
    )
    centers = low + (high - low) / (channels + 1) * np.arange(1, channels + 2)
    step = 0.5 * rate / (bins - 1)
    first = int(1.5 + attributes.lower_frequency_limit / step)
    last = int(attributes.upper_frequency_limit / step)
    if last >= bins:
        raise ModelError(
            f"{MFCC}: frequencies up to {attributes.upper_frequency_limit} of a spectrogram that "
            f"ends at {rate / 2}"
        )
    found = np.zeros((bins, channels))
    place = 0
    for i in range(first, last + 1):
        mel = float(_mel(i * step))
        while place < channels and centers[place] < mel:
            place += 1
        before = low if place == 0 else centers[place - 1]
        falling = (centers[place] - mel) / (centers[place] - before)
        if place > 0:
            found[i, place - 1] += falling
        if place < channels:
            found[i, place] += 1 - falling
    return found


def cosine_matrix(attributes: Mfcc) -> Array:
    """[channels, coefficients], f64."""
    channels = attributes.filterbank_channel_count
    angle = np.outer(np.arange(channels) + 0.5, np.arange(attributes.dct_coefficient_count))
    return np.asarray(math.sqrt(2.0 / channels) * np.cos(angle * (math.pi / channels)))


def _reference_spectrogram(attributes: Spectrogram, arrays: Arrays) -> list[Array]:
    samples = present(arrays[0]).astype(np.float64)
    frames, size = attributes.frames(len(samples)), attributes.window_size
    starts = np.arange(frames)[:, None] * attributes.stride
    windows = samples.T[:, starts + np.arange(size)] * attributes.window()
    bins = np.fft.rfft(windows, attributes.transform, axis=2)
    # A fast transform spreads what is not finite over all bins.
    bins[~np.isfinite(windows).all(axis=2)] = np.nan
    squares = (bins.real**2 + bins.imag**2).astype(np.float32)
    return [squares if attributes.squared else np.sqrt(squares)]


def _reference_mfcc(attributes: Mfcc, arrays: Arrays) -> list[Array]:
    source, rate = present(arrays[0]), int(present(arrays[1]).reshape(()))
    magnitudes = np.sqrt(source.astype(np.float64))
    # Bins that no channel takes are not looked at: a NaN there does not matter.
    matrix = mel_matrix(attributes, source.shape[2], rate)
    used = matrix.any(axis=1)
    sums = magnitudes[..., used] @ matrix[used]
    logs = np.log(np.where(sums < _FLOOR, _FLOOR, sums))
    return [(logs @ cosine_matrix(attributes)).astype(np.float32)]


def _work_spectrogram(node: Node) -> Work:
    """By a fast Fourier transform."""
    size = node.attrs.transform
    frames = math.prod(node.outputs[0].shape[:2])
    return Work.of(node, 5 * frames * size * int(math.log2(size)))


def _spectrogram_samples() -> list[Sample]:
    def case(id: str, samples: int, channels: int, size: int, stride: int, squared: bool) -> Sample:
        options = write_map({"window_size": size, "stride": stride, "magnitude_squared": squared})
        args = (Arg((samples, channels)),)
        return Sample(id, {}, args, custom_options=options, accumulates=size)

    return [
        case("squared", 53, 1, 13, 5, True),
        case("two_channels", 40, 2, 16, 8, False),
    ]


def _mfcc_samples() -> list[Sample]:
    def case(
        id: str,
        shape: tuple[int, int, int],
        upper: float,
        lower: float,
        bands: int,
        count: int,
        rate: int,
    ) -> Sample:
        options = write_map(
            {
                "upper_frequency_limit": upper,
                "lower_frequency_limit": lower,
                "filterbank_channel_count": bands,
                "dct_coefficient_count": count,
            }
        )
        args = (Arg(shape, low=0.1, high=4.0), Arg.of([rate], DType.I32))
        return Sample(id, {}, args, custom_options=options, accumulates=shape[2])

    return [
        case("speech", (1, 3, 65), 4000.0, 20.0, 12, 7, 16000),
        case("two_channels", (2, 2, 33), 3500.0, 100.0, 8, 8, 8000),
    ]


OPS = (
    OpDef(
        SPECTROGRAM, _parse_spectrogram, _infer_spectrogram, _reference_spectrogram,
        _spectrogram_samples, accuracy=Accuracy.ACCUMULATE, is_custom=True,
        device=OnDevice(work=_work_spectrogram)
    ),
    OpDef(
        MFCC, _parse_mfcc, _infer_mfcc, _reference_mfcc, _mfcc_samples,
        accuracy=Accuracy.ACCUMULATE, is_custom=True,
    ),
)  # fmt: skip
