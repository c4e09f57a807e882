"""The constants of a plan, and which of them are equal, bit for bit.

Large ones may be as the model's file stores them: their bytes on the device are made when they are
uploaded, and a saved plan refers to the file. A digest of small ones, and of large ones a sample,
tells what may be equal; only then are large ones compared as a whole. So it costs little to ask
where nothing is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Union, overload

import numpy as np
import numpy.typing as npt

from tflgpu.ir.dtypes import Array, Quantization
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.lowering.weights import Weights
from tflgpu.values import frozen

#: One of them: its numbers in the order and type of its buffer, or what makes them.
ConstantItem = Union[Array, Weights]


@frozen(eq=False)
class Constants(Sequence[Array]):
    """Flat arrays, uploaded once. Each is made when it is asked for, where it is large.

    Attributes:
        items: What they are made of.
    """

    items: tuple[ConstantItem, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their bytes."""
        return tuple(item.nbytes for item in self.items)

    def only(self, indices: Sequence[int]) -> Constants:
        """Those of some indices."""
        return Constants(tuple(self.items[i] for i in indices))

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Array: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...

    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        if isinstance(index, slice):
            return Constants(self.items[index])
        item = self.items[index]
        return item if isinstance(item, np.ndarray) else item.array()


def constants(arrays: Sequence[Array]) -> Constants:
    """Those of a plan that has arrays."""
    return arrays if isinstance(arrays, Constants) else Constants(tuple(arrays))


Bytes = npt.NDArray[np.uint8]
#: Size, and a digest of a sample; whether that was all of it.
Key = tuple[int, bytes, bool]

#: Constants up to this size are known by a digest of all of it.
_SMALL = 16 << 10
#: Of larger ones so many pieces of so many bytes are looked at first.
_PIECES, _PIECE = 16, 256


def flat(numbers: ConstantItem) -> Bytes:
    """A constant's elements in row-major order, as bytes; a view where they lie so already."""
    array = numbers if isinstance(numbers, np.ndarray) else numbers.array()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def key_of(numbers: ConstantItem) -> Key:
    """A key that equal constants share, and that few others have. Those that are made of what a
    file stores are equal where that is."""
    if isinstance(numbers, Weights):
        _, sample, _ = key_of(_stored(numbers))
        reals = numbers.contents
        scale = reals.quantization if isinstance(reals, StoredReals) else None
        how = (reals.shape, _scales(scale), numbers.taps, numbers.dtype.str)
        return numbers.nbytes, hashlib.sha256(sample + repr(how).encode()).digest(), False
    data = flat(numbers)
    if data.nbytes <= _SMALL:
        return data.nbytes, hashlib.sha256(data.data).digest(), True
    whole, last = data.data, data.nbytes - _PIECE
    starts = (last * i // (_PIECES - 1) for i in range(_PIECES))
    digest = hashlib.sha256(b"".join([whole[start : start + _PIECE] for start in starts]))
    return data.nbytes, digest.digest(), False


def _scales(quantization: Quantization | BlockScales | None) -> bytes:
    """A digest of what makes real numbers of stored ones."""
    if quantization is None:
        return b""
    if isinstance(quantization, BlockScales):
        return hashlib.sha256(flat(quantization.scales).data).digest()
    # As a text, thousands of scales take longer to write than their weights take to be read.
    numbers = (quantization.scale, quantization.zero_point, (quantization.axis,))
    return hashlib.sha256(b"".join(np.array(each).tobytes() for each in numbers)).digest()


def equal(one: Bytes, other: Bytes) -> bool:
    """Whether two have the same bytes."""
    if one.nbytes != other.nbytes:
        return False
    whole = one.nbytes // 8 * 8
    return bool(
        np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64))
        and np.array_equal(one[whole:], other[whole:])
    )


def firsts(arrays: Sequence[ConstantItem], keys: Sequence[Key] | None = None) -> list[int]:
    """For each array the index of the first that is equal to it. A plan needs memory only for
    arrays whose index is their own. ``keys`` are those of `key_of`, where the caller has them
    already."""
    seen: dict[Key, list[int]] = {}
    found = []
    for i, (array, key) in enumerate(zip(arrays, keys or map(key_of, arrays), strict=True)):
        others = seen.setdefault(key, [])
        same = next((j for j in others if key[2] or _equal(arrays[j], array)), i)
        if same == i:
            others.append(i)
        found.append(same)
    return found


def _equal(one: ConstantItem, other: ConstantItem) -> bool:
    """Whether two with the same key are equal."""
    return equal(flat(_stored(one)), flat(_stored(other)))


def _stored(numbers: ConstantItem) -> Array:
    contents = numbers.contents if isinstance(numbers, Weights) else numbers
    return contents.numbers if isinstance(contents, StoredReals) else contents
