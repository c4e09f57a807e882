"""Which shapes an input may be given."""

from __future__ import annotations

from tflgpu.errors import ModelError, ResizeError
from tflgpu.ir.brief import listed, quoted
from tflgpu.ir.graph import Shape
from tflgpu.ir.sizes import check_size
from tflgpu.tflite.model_file import TensorInfo


def check_resize(info: TensorInfo, shape: Shape, *, strict: bool) -> None:
    """That an input can have a shape.

    Raises:
        ResizeError: a negative or far too large size, or, if ``strict``, a change of what the file
            fixes.
    """
    name = f"tensor {info.index} ({quoted(info.name)})"
    if any(d < 0 for d in shape):
        raise ResizeError(f"{name} cannot be resized to {listed(shape)}: a negative size")
    try:
        check_size(shape, info.dtype, name)
    except ModelError as error:
        raise ResizeError(f"cannot resize: {error}") from None
    fixed = info.shape_signature
    if strict and (
        len(fixed) != len(shape) or any(d not in (-1, n) for d, n in zip(fixed, shape, strict=True))
    ):
        raise ResizeError(
            f"{name} cannot be resized to {listed(shape)}: with strict=True only sizes "
            f"that are -1 in its shape signature {list(fixed)} can change"
        )
