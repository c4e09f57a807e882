"""The constants of a plan. Large ones may be as the model's file stores them: their bytes on the
device are made when they are uploaded, and a saved plan refers to the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union, overload

import numpy as np

from tflgpu.ir.dtypes import Array
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
