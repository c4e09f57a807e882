"""AudioSpectrogram and Mfcc: the transforms as products with constant matrices."""

from __future__ import annotations

import math

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.recurrent import multiply
from tflgpu.language.types import BOOL, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.ops.audio import MFCC, SPECTROGRAM, Mfcc, Spectrogram, cosine_matrix, mel_matrix

_LARGEST = float(np.finfo(np.float32).max)
_FLOOR = 1e-12


def _spectrogram(low: Lowering) -> None:
    """Four bins of a frame an invocation."""
    attributes: Spectrogram = low.attrs
    _, frames, bins = low.node.outputs[0].shape
    k = low.kernel("spectrogram")
    samples = low.read(k, 0)
    turns = np.outer(np.arange(attributes.window_size), np.arange(bins))
    angles = turns % attributes.transform * (2 * math.pi / attributes.transform)
    slices = -(-bins // 4)
    waves = np.zeros((attributes.window_size, 2, slices * 4))
    waves[:, 0, :bins], waves[:, 1, :bins] = np.cos(angles), np.sin(angles)
    waves *= attributes.window()[:, None, None]
    # In f32 also where the precision would store constants in 16 bits: these are differences.
    weights = low.weights(k, waves, scalar=Scalar.F32)
    out = low.write(k)
    with each_vector(low, k, out) as (row, slice_):
        channel, frame = k.let(row // frames, "channel"), k.let(row % frames, "frame")
        start = k.let(frame * attributes.stride, "start")
        real, imaginary = (k.var(k.f32(0.0, 4), name) for name in ("real", "imaginary"))
        odd = k.var(k.const(False, BOOL), "odd")
        with k.loop(0, attributes.window_size, name="i") as i:
            x = k.let(k.cast(samples.load_lane(start + i, channel), Scalar.F32), "x")
            at = k.let(i * (2 * slices) + slice_, "at")
            k.fma_to(real, x, k.load(weights, at))
            k.fma_to(imaginary, x, k.load(weights, at + slices))
            with k.if_(~(k.call("abs", x) <= _LARGEST)):
                k.set(odd, k.const(True, BOOL))
        power = k.let(real * real + imaginary * imaginary, "power")
        value = power if attributes.squared else k.call("sqrt", power)
        out.store(row, slice_, k.select(odd, k.f32(math.nan, 4), value))


def _mfcc(low: Lowering) -> None:
    """The logarithms of the channels' sums, then their cosine transform."""
    attributes: Mfcc = low.attrs
    node = low.node
    *outer, bins = node.input(0).shape
    rows, bands = math.prod(outer), attributes.filterbank_channel_count
    matrix = mel_matrix(attributes, bins, int(node.const(1).reshape(())))
    used = np.flatnonzero(matrix.any(axis=1))
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    slices = -(-bands // 4)
    logs = low.temp((rows, bands), Scalar.F32)
    k = low.kernel("mel_bands")
    source, between = low.read(k, 0), low.write_temp(k, logs, "logs")
    packed = np.zeros((max(1, last - first), slices * 4))
    packed[: last - first, :bands] = matrix[first:last]
    weights = low.weights(k, packed, scalar=Scalar.F32)
    with each_vector(low, k, between) as (row, slice_):
        total = k.var(k.f32(0.0, 4), "total")
        with k.loop(0, last - first, name="i") as i:
            square = k.cast(source.load_lane(row, i + first), Scalar.F32)
            magnitude = k.let(k.call("sqrt", square), "magnitude")
            k.fma_to(total, magnitude, k.load(weights, i * slices + slice_))
        above = k.select(total < _FLOOR, k.f32(_FLOOR, 4), total)
        between.store(row, slice_, k.call("log", above))

    count = attributes.dct_coefficient_count
    columns = -(-count // 4)
    cosines = np.zeros((slices * 4, columns * 4))
    cosines[:bands, :count] = cosine_matrix(attributes)
    k = low.kernel("cosine_transform")
    given = low.read_temp(k, logs, "logs")
    weights = low.weights(k, cosines, scalar=Scalar.F32)
    out = low.write(k)
    with each_vector(low, k, out) as (row, column):
        result = k.var(k.f32(0.0, 4), "result")
        multiply(k, result, lambda q: given.load(row, q), slices, weights, column, columns)
        out.store(row, column, result)


def _accepts_mfcc(node: Node, site: Site) -> str | None:
    if node.input(1).contents is None:
        return f"{MFCC}: the sample rate (operand 1) is not a constant"
    return takes(FLOATS, operands=1)(node, site)


RULES = (
    KernelRule(SPECTROGRAM, "matrix", _spectrogram, takes(FLOATS)),
    KernelRule(MFCC, "matrix", _mfcc, _accepts_mfcc),
)
