"""DLPack: reads the tensor in a capsule, and makes capsules over memory of tflgpu.

Source: dlpack.h of DLPack 1.0; the Python side is "Python Specification for DLPack" of the array
API standard.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tflgpu.errors import InputError, UnsupportedError
from tflgpu.ir.graph import Shape
from tflgpu.values import frozen

CUDA = 2
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_MAJOR = 1
_get_name, _get_pointer, _new = (
    getattr(ctypes.pythonapi, name)
    for name in ("PyCapsule_GetName", "PyCapsule_GetPointer", "PyCapsule_New")
)
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
# A destructor gets a capsule that nobody refers to any more, which must not become an object.
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@frozen
class DlpackTensor:
    """What a capsule says.

    Attributes:
        device: DLPack's kind of device, and which.
        pointer: Where the elements begin.
        shape, dtype: Of the elements, which lie packed row-major.
    """

    device: tuple[int, int]
    pointer: int
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def seen(capsule: object, kind: str) -> DlpackTensor:
    """Look into a capsule, which stays its owner's: it is not consumed.

    Args:
        capsule: What ``__dlpack__`` gave.
        kind: Whose, for messages.

    Raises:
        UnsupportedError: it is none, was consumed, or has elements of a type that no tensor has.
        InputError: its elements do not lie packed row-major.
    """
    try:
        name = _get_name(capsule)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"{kind}: __dlpack__ gave no capsule: {error}") from error
    if name not in (_PLAIN, _VERSIONED):
        raise UnsupportedError(f"{kind}: __dlpack__ gave a capsule named {name!r}, not 'dltensor'")
    address = _get_pointer(capsule, name)
    if name == _PLAIN:
        tensor = _Managed.from_address(address).tensor
    else:
        whole = _ManagedVersioned.from_address(address)
        if whole.major != _MAJOR:
            raise UnsupportedError(f"{kind} is of DLPack {whole.major}, and {_MAJOR} is known here")
        tensor = whole.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    letter = next((k for k, code in _CODES.items() if code == tensor.code), None)
    if letter is None or tensor.lanes != 1 or tensor.bits not in (8, 16, 32, 64):
        raise UnsupportedError(
            f"{kind} has elements of DLPack type {tensor.code} with {tensor.bits} bits and "
            f"{tensor.lanes} lanes, which no tensor of a model has"
        )
    dtype = np.dtype(np.bool_ if letter == "b" else f"{letter}{tensor.bits // 8}")
    if tensor.strides and 0 not in shape:
        step = 1
        for size, stride in zip(
            reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True
        ):
            if size > 1 and stride != step:
                raise InputError(
                    f"{kind} whose elements do not lie packed row-major cannot be bound"
                )
            step *= size
    device = int(tensor.device_type), int(tensor.device_id)
    return DlpackTensor(device, int(tensor.data or 0) + int(tensor.byte_offset), shape, dtype)


#: What capsules over our memory need, by the address of their struct, until somebody deletes it.
_kept: dict[int, tuple[Any, ...]] = {}


def capsule(what: DlpackTensor, owner: object, *, versioned: bool = False) -> Any:
    """A capsule over memory, which keeps ``owner`` alive until its consumer is done with it."""
    shape = (ctypes.c_int64 * max(1, len(what.shape)))(*what.shape)
    tensor = _Tensor(
        data=what.pointer,
        device_type=what.device[0],
        device_id=what.device[1],
        ndim=len(what.shape),
        code=_CODES[what.dtype.kind],
        bits=what.dtype.itemsize * 8,
        lanes=1,
        shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        byte_offset=0,
    )
    made: Any
    if versioned:
        made = _ManagedVersioned(major=_MAJOR, minor=0, deleter=_delete, flags=0, tensor=tensor)
    else:
        made = _Managed(tensor=tensor, deleter=_delete)
    address = ctypes.addressof(made)
    _kept[address] = (made, shape, owner)
    return _new(address, _VERSIONED if versioned else _PLAIN, _destroy)


def _forget(address: int) -> None:
    _kept.pop(address, None)


def _end(capsule: int) -> None:
    # One that was consumed has another name, and its consumer calls the deleter.
    for name in (_PLAIN, _VERSIONED):
        if _raw_valid(capsule, name):
            _forget(_raw_pointer(capsule, name))


_delete, _destroy = _Deleter(_forget), _Destructor(_end)
