"""What shape an input may be given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tflgpu.errors import ModelError, ResizeError
from tflgpu.interpreter.arguments import as_index, shape_of
from tflgpu.ir.brief import listed, quoted
from tflgpu.ir.budget import check_size
from tflgpu.ir.graph import Shape
from tflgpu.tflite.model_file import SubgraphInfo, TensorInfo


def new_shape(
    info: SubgraphInfo, index: Any, size: Any, resized: Mapping[int, Shape], *, strict: bool
) -> tuple[int, Shape]:
    """An input's index and the shape that it is to have; ``resized`` has those that inputs were given.

    Raises:
        ResizeError: no such input, a negative or far too large size, or, if ``strict``, a change of
            what the file fixes.
        InputError: ``size`` is not a list of whole numbers.
        ArgumentError: ``index`` is not a number, or ``size`` is None.
    """
    index = as_index(index)
    shape = shape_of(size)
    if index not in info.inputs:
        raise ResizeError(
            f"tensor {index} is not an input, and only inputs can be resized; they are "
            f"{all_named(info, info.inputs)}"
        )
    tensor = info.tensors[index]
    if tensor.default is not None and shape != tensor.shape:
        raise ResizeError(
            f"Attempting to resize a fixed-size tensor: {named(tensor)} has contents in the file, of "
            f"shape {list(tensor.shape)}"
        )
    if any(d < 0 for d in shape):
        raise ResizeError(f"{named(tensor)} cannot be resized to {listed(shape)}: a negative size")
    try:
        check_size(shape, tensor.dtype, named(tensor))
    except ModelError as error:
        raise ResizeError(f"cannot resize: {error}") from None
    fixed = tensor.signature(resized.get(index, tensor.shape))
    if strict and (
        len(fixed) != len(shape) or any(d not in (-1, n) for d, n in zip(fixed, shape, strict=True))
    ):
        raise ResizeError(
            f"{named(tensor)} cannot be resized to {listed(shape)}: with strict=True only sizes "
            f"that are -1 in its shape signature {list(fixed)} can change"
        )
    return index, shape


def all_named(info: SubgraphInfo, indices: Collection[int]) -> str:
    """Tensors, for messages."""
    return ", ".join(named(info.tensors[i]) for i in indices) or "none"


def named(info: TensorInfo) -> str:
    """A tensor, for messages."""
    return f"tensor {info.index} ({quoted(info.name)})"


def told(info: SubgraphInfo, resized: Mapping[int, Shape]) -> str:
    """What was resized, as the end of a message; nothing where nothing was."""
    pairs = (f"{named(info.tensors[i])} to {listed(s)}" for i, s in resized.items())
    return f"; inputs were resized: {', '.join(pairs)}" if resized else ""
