"""A `Model`'s inputs and outputs by name, and checks that arrays fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import InputError
from tflgpu.errors.blame import quoted
from tflgpu.interpreter.arguments import as_array
from tflgpu.ir.dtypes import Array


@attrs.frozen
class NamedTensor:
    """An input or output: its names in the first signature and in the file, and its shape."""

    index: int
    name: str
    aliases: frozenset[str]
    shape: tuple[int, ...]
    open_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def described(self) -> str:
        """For messages."""
        return f"{quoted(self.name)} ({self.dtype}{list(self.open_shape)})"


def named_tensors(
    details: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> Iterator[NamedTensor]:
    """Of details as `tensor_details` gives them; ``names`` are a signature's, by tensor."""
    for d in details:
        index, own = d["index"], str(d["name"])
        yield NamedTensor(
            index,
            names.get(index, own),
            frozenset({own}),
            tuple(int(n) for n in d["shape"]),
            tuple(int(n) for n in d["shape_signature"]),
            np.dtype(d["dtype"]),
        )


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array's shape is one that may have -1 for any size."""
    if shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        b in (-1, a) for a, b in zip(shape, wanted, strict=True)
    )


def converted(tensor: NamedTensor, value: Any) -> Array:
    """An array of the input's type.

    Raises:
        InputError: it is no array of numbers, or would change; or it is of bytes or samples (whole
            numbers of 8 or 16 bits), which a model may expect in any range.
    """
    if type(value) is np.ndarray and value.dtype == tensor.dtype:
        return value
    is_text = tensor.dtype.kind == "S"
    array = as_array(f"input {tensor.described}", is_text, value)
    if array.dtype == tensor.dtype or (is_text and array.dtype.kind in "OSU"):
        return array  # texts are looked at one by one when they are set
    is_small = array.dtype.kind in "iu" and array.dtype.itemsize <= 2
    if is_small and tensor.dtype.kind == "f":
        raise InputError(
            f"input {tensor.described}: an array of {array.dtype} is not converted, since only the "
            "model's author knows the range that it expects; convert it by "
            f"x.astype(np.{tensor.dtype}) or, where that is from 0 to 1, (x / "
            f"{np.iinfo(array.dtype).max}).astype(np.{tensor.dtype}); of bytes "
            "tflgpu.converters.FromBytes does so on the device"
        )
    if array.dtype.kind in "fiub" and tensor.dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = array.astype(tensor.dtype)
        if np.array_equal(np.isinf(found), np.isinf(array)):
            return found  # digits are lost at most
        raise InputError(f"input {tensor.described}: values to {_largest(array)} do not fit")
    if (
        array.dtype.kind in "iu"
        and tensor.dtype.kind in "iu"
        and (not is_small or np.can_cast(array.dtype, tensor.dtype))
    ):
        found = array.astype(tensor.dtype)
        if np.array_equal(found, array):
            return found
        raise InputError(
            f"input {tensor.described}: values from {array.min()} to {array.max()} do not fit"
        )
    raise InputError(
        f"input {tensor.described}: an array of {array.dtype} is not converted, since it might "
        f"change; give one of {tensor.dtype}"
    )


def _largest(array: Array) -> Any:
    return np.abs(array[np.isfinite(array)]).max()


def listed(names: Sequence[str]) -> str:
    """Names, for messages."""
    return ", ".join(map(quoted, names)) or "none"
