"""Constants that are quantized by blocks, and of 16-bit floats that NumPy lacks, as real numbers.

A block of elements shares a scale, which is an element of another tensor. LiteRT's kernels multiply
such weights by activations that they quantize for it; the real numbers are what both approximate,
so these are what a graph gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.ir.budget import bytes_of, check_size, spend
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Value
from tflgpu.ir.stored_reals import BlockScales, ConstantData, StoredReals
from tflgpu.lowering.reason import Unsupported
from tflgpu.tflite.model_file import TensorInfo


def of_bf16(bits: Array) -> Array:
    """Numbers of 16 bits, of which all are the upper ones of an f32 number, as f32: exactly."""
    found: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return found


def by_blocks(value: Value, info: TensorInfo) -> bool:
    """Whether a tensor is quantized by blocks, and not a constant of real numbers by now."""
    return info.blockwise is not None and value.dtype is not DType.F32


def real_numbers(info: TensorInfo, tensors: Sequence[TensorInfo]) -> ConstantData | Unsupported:
    """The values of a constant that is quantized by blocks, in f32, or why they cannot be computed.
    Rows of 4 bits without zero points stay as they are stored.

    Raises:
        ModelError: it is too large for a tensor.
    """
    blocks, stored = info.blockwise, info.data
    assert blocks is not None
    if stored is None:
        return Unsupported("it is quantized by blocks, and no constant")
    if not np.issubdtype(stored.dtype, np.integer):
        return Unsupported(f"it is quantized by blocks, and {info.dtype.value}")
    where = f"tensor {info.index} in f32"
    check_size(info.shape, DType.F32, where)
    spend("nbytes", bytes_of(info.shape, DType.F32), where)
    sizes = _sizes(blocks.block_shape, blocks.block_size, info.shape)
    if sizes is None:
        return Unsupported(
            f"blocks of {list(blocks.block_shape) or blocks.block_size} do not divide "
            f"{list(info.shape)}"
        )
    counts = tuple(d // s for d, s in zip(info.shape, sizes, strict=True))
    scales = _of_blocks(tensors[blocks.scales], counts)
    points = None if blocks.zero_points < 0 else _of_blocks(tensors[blocks.zero_points], counts)
    if scales is None or not np.isfinite(scales).all():
        return Unsupported(
            f"its scales, tensor {blocks.scales}, are not a finite constant for each of "
            f"{list(counts)} blocks"
        )
    if points is None and blocks.zero_points >= 0:
        return Unsupported(
            f"its zero points, tensor {blocks.zero_points}, are not a constant for each of "
            f"{list(counts)} blocks"
        )
    by_row = sizes[:-1] == (1,) * (len(sizes) - 1)
    raw, of_blocks = info.packed_data, _numbers(tensors[blocks.scales], counts)
    in_pairs = by_row and info.shape[-1] % 2 == 0
    if in_pairs and points is None and raw is not None and of_blocks is not None:
        raw = raw.reshape(*info.shape[:-1], -1)
        return StoredReals(raw, BlockScales(of_blocks, sizes[-1]), in_nibbles=True)
    real = stored.astype(np.float32).reshape(
        [n for pair in zip(counts, sizes, strict=True) for n in pair]
    )
    if points is not None:
        real -= points
    real *= scales
    real = real.reshape(info.shape)
    real.setflags(write=False)
    return real


def _sizes(shape: Sequence[int], size: int, whole: tuple[int, ...]) -> tuple[int, ...] | None:
    """Elements of a block by dimension, None where they do not divide the tensor."""
    found = tuple(shape) if shape else (*(1 for _ in whole[1:]), size)
    fits = whole and len(found) == len(whole) and all(s > 0 for s in found)
    return found if fits and not any(d % s for d, s in zip(whole, found, strict=True)) else None


def _of_blocks(info: TensorInfo, counts: tuple[int, ...]) -> Array | None:
    """One number a block, to broadcast over the elements of each; None where it is not that."""
    data = _numbers(info, counts)
    if data is None:
        return None
    return data.astype(np.float32).reshape([n for count in counts for n in (count, 1)])


def _numbers(info: TensorInfo, counts: tuple[int, ...]) -> Array | None:
    """One number a block, of shape ``counts``, as it is stored."""
    if info.data is None or info.data.size != int(np.prod(counts)) or info.quantization is not None:
        return None
    data = of_bf16(info.data) if info.dtype is DType.BF16 else info.data
    return data.reshape(counts) if data.dtype.kind in "fiu" else None
