"""LSH_PROJECTION: bits by which things that are alike are mostly the same. TFLite version 1.

Bit (i, j) is whether the sum, over the items of the input, of their weights times the hash of (the
number ``hash[i, j]``, the item) is positive. An item is the bytes of a row of the input; of texts
TFLite cuts up the bytes that its tensors of texts are stored as, which begin with numbers of where
each text begins.

The hash is Farmhash's 64-bit fingerprint (Google, 2014), taken as a signed number.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.values import frozen

_OP = "LSH_PROJECTION"
#: The schema's LSHProjectionType.
_SPARSE, _DENSE = 1, 2
_U64 = np.uint64
_K0, _K1, _K2 = _U64(0xC3A5C85C97CB3127), _U64(0xB492B66FBE98F273), _U64(0x9AE16A3B2F90404F)


@frozen
class Projection:
    """``type`` 2, dense: each bit is a number of its own; 1, sparse: the bits of a row of hashes
    are one number, to which row i adds i * 2**bits."""

    type: int = _SPARSE


def _parse(fields: Fields) -> Projection:
    kind = fields.integer("type")
    if kind not in (_SPARSE, _DENSE):
        raise ModelError(f"{_OP}: type {kind} is neither sparse (1) nor dense (2)")
    return Projection(kind)


def _infer(attributes: Projection, operands: Operands) -> list[TensorSpec]:
    hashes, x, *rest = take_operands(_OP, operands, 2, 3)
    need_rank(_OP, hashes, "the hashes (operand 0)", 2)
    if hashes.dtype is not DType.F32 or hashes.shape[1] > 32:
        raise ModelError(
            f"{_OP}: the hashes are {hashes.dtype.value}{list(hashes.shape)}, not at most 32 f32 "
            "a row"
        )
    if x.rank < 1 or x.shape[0] < 1:
        raise ModelError(f"{_OP}: the input of shape {list(x.shape)} has no items")
    if rest and (rest[0].dtype is not DType.F32 or rest[0].shape != x.shape[:1]):
        raise ModelError(
            f"{_OP}: the weights are {rest[0].dtype.value}{list(rest[0].shape)}, not a number "
            f"for each of {x.shape[0]} items"
        )
    rows, bits = hashes.shape
    return [TensorSpec((rows * bits if attributes.type == _DENSE else rows,), DType.I32)]


def _reference(attributes: Projection, arrays: Arrays) -> list[Array]:
    hashes, x = present(arrays[0]), present(arrays[1])
    count = x.shape[0]
    raw = _stored_texts(x) if x.dtype == np.object_ else np.ascontiguousarray(x).tobytes()
    width = len(raw) // count
    if width + 4 > 1 << 20:
        raise InputError(f"{_OP}: items of {width} bytes are too long")
    items = np.frombuffer(raw, np.uint8, width * count).reshape(count, width)
    weights = np.ones(count) if len(arrays) < 3 else present(arrays[2]).astype(np.float64)
    seeds = np.ascontiguousarray(hashes, np.float32).reshape(-1)
    bits = np.empty(seeds.size, np.int32)
    for i, seed in enumerate(seeds):
        start = np.broadcast_to(np.frombuffer(seed.tobytes(), np.uint8), (count, 4))
        found = fingerprint(np.concatenate([start, items], 1)).view(np.int64).astype(np.float64)
        # In the order of the items, which decides where sums are near 0.
        bits[i] = np.add.accumulate(weights * found)[-1] > 0
    if attributes.type == _DENSE:
        return [bits]
    rows, wide = hashes.shape
    powers = 1 << np.arange(wide - 1, -1, -1, dtype=np.int64)
    sums = (bits.reshape(rows, wide) * powers).sum(1) + np.arange(rows, dtype=np.int64) * (
        1 << wide
    )
    return [sums.astype(np.int32)]  # which wraps, as C's whole numbers do


def _stored_texts(texts: Array) -> bytes:
    """The bytes of a TFLite tensor of texts: how many there are, where each begins and the last one
    ends (i32), and their characters."""
    each = [bytes(t) for t in texts.reshape(-1)]
    begins = np.cumsum([4 * (len(each) + 2), *map(len, each)])
    return np.array([len(each), *begins], "<i4").tobytes() + b"".join(each)


# The hash


def fingerprint(rows: Array) -> Array:
    """Farmhash's fingerprint of each row of bytes: u8 [n, width] -> u64 [n]."""
    width = rows.shape[1]
    rows = np.ascontiguousarray(rows)
    with np.errstate(over="ignore"):
        if width <= 16:
            return _short(rows, width)
        many = _U64(width * 2)
        if width <= 64:
            return _middle(rows, width, _K2 + many)
        return _long(rows, width)


def _at(rows: Array, place: int) -> Array:
    words = np.ascontiguousarray(rows[:, place : place + 8]).view("<u8")
    return np.asarray(words[:, 0], _U64)


def _half(rows: Array, place: int) -> Array:
    words = np.ascontiguousarray(rows[:, place : place + 4]).view("<u4")
    return np.asarray(words[:, 0], _U64)


def _turn(x: Array, by: int) -> Array:
    return np.asarray(x >> _U64(by) | x << _U64(64 - by))


def _fold(x: Array) -> Array:
    return np.asarray(x ^ x >> _U64(47))


def _join(u: Array, v: Array, factor: Array) -> Array:
    return np.asarray(_fold((_fold((u ^ v) * factor) ^ v) * factor) * factor)


def _short(rows: Array, width: int) -> Array:
    factor = _K2 + _U64(width * 2)
    if width >= 8:
        a, b = _at(rows, 0) + _K2, _at(rows, width - 8)
        return _join(_turn(b, 37) * factor + a, (_turn(a, 25) + b) * factor, factor)
    if width >= 4:
        return _join(_U64(width) + (_half(rows, 0) << _U64(3)), _half(rows, width - 4), factor)
    if width == 0:
        return np.full(len(rows), _K2)
    first, middle, last = (rows[:, i].astype(_U64) for i in (0, width >> 1, width - 1))
    y, z = first + (middle << _U64(8)), _U64(width) + (last << _U64(2))
    return np.asarray(_fold(y * _K2 ^ z * _K0) * _K2)


def _middle(rows: Array, width: int, factor: Array) -> Array:
    inner = _K1 if width <= 32 else _K2
    a, b = _at(rows, 0) * inner, _at(rows, 8)
    c, d = _at(rows, width - 8) * factor, _at(rows, width - 16) * _K2
    y = _turn(a + b, 43) + _turn(c, 30) + d
    z = _join(y, a + _turn(b + _K2, 18) + c, factor)
    if width <= 32:
        return z
    e, f = _at(rows, 16) * factor, _at(rows, 24)
    g, h = (y + _at(rows, width - 32)) * factor, (z + _at(rows, width - 24)) * factor
    return _join(_turn(e + f, 43) + _turn(g, 30) + h, e + _turn(f + a, 18) + g, factor)


def _weak(rows: Array, place: int, a: Array, b: Array) -> tuple[Array, Array]:
    w, x, y, z = (_at(rows, place + 8 * i) for i in range(4))
    a = a + w
    b = _turn(b + a + z, 21)
    first = a
    a = a + x + y
    return a + z, b + _turn(a, 44) + first


def _long(rows: Array, width: int) -> Array:
    zero = np.zeros(len(rows), _U64)
    seed = _U64(81)
    y = zero + (seed * _K1 + _U64(113))
    z = _fold(y * _K2 + _U64(113)) * _K2
    v, w = (zero, zero), (zero, zero)
    x = seed * _K2 + _at(rows, 0)
    place, end, rest = 0, (width - 1) // 64 * 64, (width - 1) & 63
    while True:
        last = place == end
        if last:
            place = end + rest - 63
            factor = _K1 + ((z & _U64(0xFF)) << _U64(1))
            w = (w[0] + _U64(rest), w[1])
            v = (v[0] + w[0], v[1])
            w = (w[0] + v[0], w[1])
        else:
            factor = zero + _K1
        x = _turn(x + y + v[0] + _at(rows, place + 8), 37) * factor
        y = _turn(y + v[1] + _at(rows, place + 48), 42) * factor
        x = x ^ w[1] * (_U64(9) if last else _U64(1))
        y = y + v[0] * (_U64(9) if last else _U64(1)) + _at(rows, place + 40)
        z = _turn(z + w[0], 33) * factor
        v = _weak(rows, place, v[1] * factor, x + w[0])
        w = _weak(rows, place + 32, z + w[1], y + _at(rows, place + 16))
        z, x = x, z
        if last:
            one = _join(v[0], w[0], factor) + _fold(y) * _K0 + z
            return _join(one, _join(v[1], w[1], factor) + x, factor)
        place += 64


def _samples() -> list[Sample]:
    def sample(
        id: str, kind: int, hashes: tuple[int, int], x: Arg, *, weighted: bool = True
    ) -> Sample:
        weights = [Arg((x.shape[0],), low=-1, high=1)] if weighted else []
        return Sample(id, {"type": kind}, (Arg(hashes), x, *weights))

    i32 = DType.I32
    return [
        sample("dense", _DENSE, (5, 3), Arg((7,), i32, -99, 99)),
        sample("sparse", _SPARSE, (3, 7), Arg((5, 5), i32, -99, 99)),
        sample("plain", _SPARSE, (2, 4), Arg((3, 13)), weighted=False),
    ]


OPS = (
    OpDef(
        _OP,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        contents=Contents(texts=True, settings=(0,)),
    ),
)
