"""STABLEHLO_RNG_BIT_GENERATOR (TFLite version 1): random bits that follow from a state alone.

TFLite's kernel: rng_bit_generator.cc. The generators are Threefry-2x32 of 20 rounds and Philox-4x32
of 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). The state is of
64-bit numbers, so the op stays on the CPU.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.brief import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Accuracy, Arg, Fields, OpDef, Operand, Quantized, Sample
from tflgpu.ops.stablehlo_gather import told_shape

_NAME = "STABLEHLO_RNG_BIT_GENERATOR"
_BITS = (DType.I32, DType.U32, DType.I64, DType.U64)
_U32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Algorithm(enum.Enum):
    """TFLite's `RngAlgorithm` codes."""

    DEFAULT = 0
    PHILOX = 1
    THREEFRY = 2


@attrs.frozen
class RandomBits:
    """The generator, and what the file says of the bits."""

    algorithm: Algorithm
    shape: tuple[int, ...]
    dtype: DType


def _parse(fields: Fields) -> RandomBits:
    code = fields.integer("algorithm")
    if code not in {a.value for a in Algorithm}:
        raise ModelError(f"{_NAME}: unknown algorithm code {code}")
    shape = told_shape(_NAME, fields, 1)
    dtypes: tuple[DType, ...] = tuple(fields.get("output_dtypes") or ())
    if len(dtypes) != 2 or dtypes[1] not in _BITS:
        raise ModelError(
            f"{_NAME}: makes a state and bits of i32, u32, i64 or u64, not {listed(dtypes)}"
        )
    return RandomBits(Algorithm(code), shape, dtypes[1])


def _infer(a: RandomBits, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    (state,) = take_operands(_NAME, operands, 1)
    sizes = (2,) if a.algorithm is Algorithm.THREEFRY else (2, 3)
    if state.dtype is not DType.U64 or state.rank != 1 or state.shape[0] not in sizes:
        wanted = " or ".join(map(str, sizes))
        raise ModelError(f"{_NAME}: the state (operand 0) is {state.spec}; {wanted} of u64 needed")
    return [state.spec, TensorSpec(a.shape, a.dtype)]


def _turned(x: Array, by: int) -> Array:
    return np.asarray(((x << np.uint64(by)) | (x >> np.uint64(32 - by))) & _U32)


def _threefry(key: Sequence[int], counters: Sequence[Array]) -> list[Array]:
    """Two 32-bit numbers for each pair of counters; all in 64 bits."""
    keys = [np.uint64(k) for k in (*key, key[0] ^ key[1] ^ 0x1BD11BDA)]
    a, b = ((c + k) & _U32 for c, k in zip(counters, keys, strict=False))
    for group in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = (a + b) & _U32
            b = _turned(b, by) ^ a
        a = (a + keys[(group + 1) % 3]) & _U32
        b = (b + keys[(group + 2) % 3] + np.uint64(group + 1)) & _U32
    return [a, b]


def _philox(key: Sequence[int], counters: Sequence[Array]) -> list[Array]:
    """Four 32-bit numbers for each four counters; all in 64 bits."""
    a, b, c, d = counters
    low, high = key
    for _ in range(10):
        one, two = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (two >> _HALF) ^ b ^ np.uint64(low),
            two & _U32,
            (one >> _HALF) ^ d ^ np.uint64(high),
            one & _U32,
        )
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def _reference(a: RandomBits, arrays: Sequence[Array | None]) -> list[Array]:
    state = present(arrays[0])
    words = [int(w) for w in state.astype("<u8").view("<u4")]
    is_threefry = a.algorithm is Algorithm.THREEFRY
    width = 2 if is_threefry else 4
    total = int(np.prod(a.shape)) * a.dtype.itemsize // 4
    blocks = -(-total // width)
    first = words[2] | words[3] << 32
    with np.errstate(over="ignore"):
        count = np.uint64(first) + np.arange(blocks, dtype=np.uint64)
    counters = [count & _U32, count >> _HALF]
    if not is_threefry:
        rest = words[4:6] if len(words) == 6 else words[:2]
        counters += [np.full(blocks, w, np.uint64) for w in rest]
    numbers = (_threefry if is_threefry else _philox)(words[:2], counters)
    bits = (
        np.stack(numbers, -1)
        .reshape(-1)[:total]
        .astype("<u4")
        .view(a.dtype.numpy.newbyteorder("<"))
    )
    after = state.copy()
    after[1] = (first + blocks) & 0xFFFFFFFFFFFFFFFF
    return [after, bits.astype(a.dtype.numpy).reshape(a.shape)]


def _samples() -> Sequence[Sample]:
    def sample(
        id: str, algorithm: Algorithm, state: list[int], shape: Shape, dtype: DType
    ) -> Sample:
        fields = {
            "algorithm": algorithm.value,
            "output_shapes": ((len(state),), shape),
            "output_dtypes": (DType.U64, dtype),
        }
        return Sample(id, fields, (Arg.of(np.array(state, np.uint64), DType.U64),))

    large = 0xFEDCBA9876543210
    return [
        sample("threefry", Algorithm.THREEFRY, [large, 0xFFFFFFFF], (3, 5), DType.U32),
        sample("threefry_i64", Algorithm.THREEFRY, [1, 2], (7,), DType.I64),
        sample("philox", Algorithm.PHILOX, [large, 7, 0x1234567890ABCDEF], (3, 5), DType.I32),
        sample("philox_two", Algorithm.PHILOX, [3, 0xFFFFFFFE], (2, 9), DType.U64),
        sample("default", Algorithm.DEFAULT, [large, 5], (11,), DType.U32),
    ]


OPS = (
    OpDef(
        _NAME,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        quantized=Quantized(stored=True),
    ),
)
