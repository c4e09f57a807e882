"""Checks the shape that an input is resized to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tflgpu.errors import ModelError, ResizeError
from tflgpu.errors.blame import listed, quoted
from tflgpu.interpreter.arguments import as_index, shape_of
from tflgpu.ir.budget import check_size
from tflgpu.ir.graph import Shape
from tflgpu.tflite.model_file import SubgraphInfo, TensorInfo

#: What LiteRT says of tensors that the file fixes.
_FIXED = "Attempting to resize a fixed-size tensor: "


def new_shape(
    info: SubgraphInfo, index: Any, size: Any, resized: Mapping[int, Shape], *, strict: bool
) -> tuple[int, Shape]:
    """An input's index and the shape that it is to have; ``resized`` has those that inputs were
    given.

    Raises:
        ResizeError: no such input, a negative or far too large size, or, if ``strict``, a change of
            what the file fixes.
        InputError: ``size`` is not a list of whole numbers.
        ArgumentError: ``index`` is not a number, or ``size`` is None.
    """
    index = as_index(index)
    shape = shape_of(size)
    if index not in info.inputs:
        fixed = 0 <= index < len(info.tensors) and info.tensors[index].is_constant
        raise ResizeError(
            f"{_FIXED if fixed else ''}tensor {index} is not an input, and only inputs can be "
            f"resized; they are {all_named(info, info.inputs)}"
        )
    tensor = info.tensors[index]
    if tensor.default is not None and shape != tensor.shape:
        raise ResizeError(
            f"{_FIXED}{named(tensor)} has contents in the file, of shape {list(tensor.shape)}"
        )
    if any(d < 0 for d in shape):
        raise ResizeError(f"{named(tensor)} cannot be resized to {listed(shape)}: a negative size")
    try:
        check_size(shape, tensor.dtype, named(tensor))
    except ModelError as error:
        raise ResizeError(f"cannot resize: {error}") from None
    if strict:
        _check_strict(tensor, resized.get(index, tensor.shape), shape)
    return index, shape


def _check_strict(tensor: TensorInfo, now: Shape, shape: Shape) -> None:
    free = tensor.signature(now)
    if len(free) == len(shape):
        fixed = [i for i, size in enumerate(free) if size not in (-1, shape[i])]
        if not fixed:
            return
        (at, *_) = fixed
        what = (
            f"Attempting to resize dimension {at} of tensor {tensor.index} with value {now[at]} to "
            f"{shape[at]}. "
        )
    else:
        what = ""
    raise ResizeError(
        f"{what}ResizeInputTensorStrict only allows mutating unknown dimensions identified by -1: "
        f"{named(tensor)} cannot be resized to {listed(shape)}: with strict=True only sizes that "
        f"are -1 in its shape signature {list(free)} can change"
    )


def no_tensor(index: int, count: int) -> str:
    """That there is no tensor of an index, where there are so many."""
    return (
        f"Invalid tensor index {index} exceeds max tensor index {count}: there is no tensor "
        f"{index}; the model has 0 to {count - 1}"
    )


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
