"""Checks an interpreter's arguments, with TFLite's messages or clearer ones."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.errors import ArgumentError, InputError, OptionError
from tflgpu.errors.blame import clipped, quoted, shown
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape
from tflgpu.options import DelegateOptions, OpResolverType
from tflgpu.tflite.constants import packed_range
from tflgpu.tflite.model_file import ModelFile, TensorInfo
from tflgpu.tflite.read import read_model

#: What is meant by a number that a method is given.
_INDEX = "a tensor index, as get_input_details()[0]['index'] is,"

# Types that NumPy lacks, by what stands for them in Python. Those of less than 8 bits are unpacked
# to bytes.
_STAND_INS: dict[DType, type[np.generic]] = {
    DType.STRING: np.bytes_,
    DType.I2: np.int8,
    DType.I4: np.int8,
    DType.U4: np.uint8,
    DType.RESOURCE: np.object_,
    DType.VARIANT: np.object_,
}


def load(path: Any, content: Any, known: Callable[[memoryview], bool]) -> ModelFile:
    """The model that a path or bytes are of; of bytes that are ``known``, as `read_model`.

    Raises:
        OptionError: both or neither were given.
        ArgumentError: no path, or no bytes.
        ModelError: no such file, or not a well-formed model.
    """
    # An empty string or no bytes are what a variable holds that was not set. Other objects are not
    # asked for their truth: an array has none.
    has_path = path is not None and not (isinstance(path, (str, bytes)) and not path)
    has_content = content is not None and not (isinstance(content, (str, bytes)) and not content)
    if has_path == has_content:
        if has_path:
            raise OptionError("Can't both provide `model_path` and `model_content`; both was given")
        raise OptionError("`model_path` or `model_content` must be specified; neither was given")
    if has_content:
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise ArgumentError(f"model_content is bytes, not {type(content).__name__}")
        return read_model(content, known)
    if not isinstance(path, (str, bytes, os.PathLike)):
        kind = type(path).__name__
        raise ArgumentError(
            f"model_path is a path, not {kind}: expected str, bytes or os.PathLike object, not "
            f"{kind}"
        )
    return read_model(os.fsdecode(path), known)


def cpu_options(
    options: DelegateOptions, backend: str | None, threads: int | None, resolver: OpResolverType
) -> DelegateOptions:
    """The options that the CPU side goes by: those given to the interpreter, then its
    delegate's."""
    if backend is not None:
        options = options.changed(cpu_backend=backend)
    if threads is not None:
        options = options.changed(num_threads=threads)
    if resolver is not OpResolverType.AUTO:
        options = options.changed(op_resolver=resolver)
    return options


def threads_of(count: Any) -> int | None:
    """A number of threads, None where it was left open.

    Raises:
        OptionError: no whole number from 1.
    """
    if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
        raise OptionError(
            "type of num_threads should be int: num_threads is a whole number, not "
            f"{type(count).__name__} {shown(count)}"
        )
    if count is not None and count < 1:
        raise OptionError(f"num_threads should >= 1: num_threads is {shown(count)}; the least is 1")
    return count


def timeout_of(timeout: Any) -> float | None:
    """Seconds to wait; None for no limit, which very large numbers mean too.

    Raises:
        ArgumentError: neither a number nor None.
    """
    if timeout is None:
        return None
    try:
        seconds = float(timeout) if not isinstance(timeout, (str, bytes)) else math.nan
    except OverflowError:  # a whole number beyond all floats
        seconds = math.inf if timeout > 0 else 0.0
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ArgumentError(f"timeout is a number of seconds or None, not {shown(timeout)}")
    return None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds)


def resolver_of(kind: Any) -> OpResolverType:
    """A resolver type, TFLite's own among them.

    Raises:
        OptionError: anything else.
    """
    # TFLite's own enum is another class with the same members.
    if kind is None:
        return OpResolverType.AUTO
    name = str(getattr(kind, "name", None))
    if name not in OpResolverType.__members__:
        names = ", ".join(OpResolverType.__members__)
        given = clipped(kind) if isinstance(kind, str) else shown(kind)
        raise OptionError(
            f"Unrecognized passed in op resolver type: {given}; experimental_op_resolver_type is "
            f"one of {names}, not {shown(kind)}"
        )
    return OpResolverType[name]


def as_index(value: Any, what: str = _INDEX) -> int:
    """A whole number.

    Raises:
        ArgumentError: it is something else; floats are not rounded, and truth values are no
            numbers.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ArgumentError(f"{what} is a whole number, not {type(value).__name__} {shown(value)}")


def shape_of(size: Any) -> Shape:
    """A shape, of any list of whole numbers.

    Raises:
        InputError: something else.
        ArgumentError: nothing at all.
    """
    if size is None:
        raise ArgumentError("tensor_size is a list of whole numbers, not None")
    try:
        sizes = np.asarray(size)
    except (ValueError, OverflowError):  # lists of unequal lengths, for one
        sizes = np.zeros((0, 0))
    if sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
        rank = "" if sizes.ndim == 1 else f"Shape should be 1D instead of {sizes.ndim}: "
        raise InputError(f"{rank}tensor_size is a list of whole numbers, not {shown(size)}")
    return tuple(int(d) for d in sizes)


def numpy_type(info: TensorInfo) -> type[np.generic]:
    """The NumPy scalar type of a tensor's elements.

    Raises:
        InputError: none stands for its type (bf16).
    """
    if info.dtype.has_numpy:
        return info.dtype.numpy.type
    try:
        return _STAND_INS[info.dtype]
    except KeyError:
        raise InputError(
            f"tensor {info.index} ({quoted(info.name)}) is {info.dtype.value}, for which NumPy "
            "has no type"
        ) from None


def as_array(described: str, is_text: bool, value: Any) -> Array:
    """The array that NumPy makes of a value for a tensor. That may call the value's own code
    (``__array__``), so that no lock is held here.

    Raises:
        InputError: NumPy makes none, or elements are masked.
    """
    if np.ma.is_masked(value):
        raise InputError(f"{described}: elements are masked; fill them (.filled(0))")
    # Of a list of texts NumPy drops final zeros, unless they stay objects.
    kept = is_text and not isinstance(value, (np.ndarray, np.generic))
    try:
        return np.asarray(value, np.object_ if kept else None)
    except (ValueError, TypeError) as error:
        raise InputError(f"{described}: no array can be made of it: {error}") from error


def tensor_array(info: TensorInfo, value: Any) -> Array:
    """`as_array` of a value for a tensor of a file."""
    if type(value) is np.ndarray:
        return value
    return as_array(f"tensor {info.index} ({quoted(info.name)})", info.dtype is DType.STRING, value)


def array_of(info: TensorInfo, value: Any) -> Array:
    """``value`` as an array of a tensor's type; nothing is converted but the byte order.

    Raises:
        InputError: it has another type, a number that 2 or 4 bits cannot hold, or is a text that
            UTF-8 cannot say.
    """
    source = tensor_array(info, value)
    if info.dtype is DType.STRING:
        return _texts_of(info, source)
    expected = np.dtype(numpy_type(info))
    if source.dtype != expected and source.dtype.newbyteorder("=") != expected:
        raise InputError(
            f"{_cannot_set(info, source.dtype, expected)}"
            f"tensor {info.index} ({quoted(info.name)}) is of type {expected}, the value of type "
            f"{source.dtype}; convert it with .astype(np.{expected}), or quantize it if the tensor "
            "is quantized"
        )
    if info.dtype.packed and source.size:
        low, high = packed_range(info.dtype)
        if not low <= source.min() <= source.max() <= high:
            name = info.dtype.value.replace("u", "UINT").replace("i", "INT")
            raise InputError(
                f"Cannot set tensor: Values for {name} input must be between {low} and {high}. "
                f"Tensor {info.index} ({quoted(info.name)}) is of type {info.dtype.value}, whose "
                f"values run from {low} to {high}; the given ones from {source.min()} to "
                f"{source.max()}"
            )
    return source


def _cannot_set(info: TensorInfo, given: np.dtype[Any], wanted: np.dtype[Any] | None) -> str:
    """How LiteRT says that a value has the wrong type."""
    names = ["STRING" if t is None or t.kind in "OSU" else t.name.upper() for t in (given, wanted)]
    return (
        f"Cannot set tensor: Got value of type {names[0]} but expected type {names[1]} for input "
        f"{info.index}, name: {clipped(info.name)} ; "
    )


def check_view(info: TensorInfo) -> None:
    """Check that a caller may have a view of a tensor's memory.

    Raises:
        InputError: it is of texts, whose array has Python's objects.
    """
    if info.dtype is DType.STRING:
        raise InputError(
            f"tensor {info.index} ({quoted(info.name)}) is of texts, of which there is no view; "
            "use set_tensor and get_tensor"
        )


def _texts_of(info: TensorInfo, source: Array) -> Array:
    """An array of ``bytes``: what is ``str`` as UTF-8."""
    what = f"tensor {info.index} ({quoted(info.name)})"
    if source.dtype.kind not in "OSU":
        raise InputError(
            f"{_cannot_set(info, source.dtype, None)}"
            f"{what} is of texts, the value of type {source.dtype}; give an array of bytes or str"
        )
    found = np.empty(source.shape, np.object_)
    for at, given in np.ndenumerate(source):
        try:
            text = given.encode() if isinstance(given, str) else given
        except UnicodeEncodeError as error:
            raise InputError(f"{what}: element {list(at)} is no text in UTF-8: {error}") from None
        if not isinstance(text, bytes):
            raise InputError(
                f"{what}: element {list(at)} is {type(text).__name__} {shown(text)}, not bytes "
                "or str"
            )
        found[at] = bytes(text)
    return found
