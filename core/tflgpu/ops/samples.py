"""Test cases of an op: written ones, random ones, and how close results must be."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.values import field, frozen

_T = TypeVar("_T")


class Accuracy(enum.Enum):
    """How close a result must be to the oracle (see `tflgpu.conformance.tolerance`)."""

    EXACT = "exact"
    ROUNDED = "rounded"
    TRANSCENDENTAL = "transcendental"
    ACCUMULATE = "accumulate"
    QUANTIZED = "quantized"


@frozen
class Arg:
    """One operand of a `Sample`: drawn at random in [low, high), or a constant.

    ``data`` makes it a constant; ``const=True`` draws a random constant (weights);
    ``variable=True`` makes it a variable, which a stateful op reads and changes.
    """

    shape: tuple[int, ...]
    dtype: DType = DType.F32
    low: float = -1.0
    high: float = 1.0
    const: bool = False
    data: Array | None = field(default=None, eq=False)
    variable: bool = False

    @classmethod
    def of(cls, data: Any, dtype: DType = DType.F32) -> Arg:
        """A constant with the given contents."""
        array = np.asarray(data, dtype=dtype.numpy)
        return cls(array.shape, dtype, const=True, data=array)

    def draw(self, rng: np.random.Generator) -> Array:
        """Contents: the constant's own, else random numbers of its range and type."""
        if self.data is not None:
            return self.data
        if self.dtype is DType.BOOL:
            return rng.random(self.shape) < 0.5
        if self.dtype.is_int:
            return rng.integers(
                int(self.low),
                max(int(self.high), int(self.low) + 1),
                self.shape,
                dtype=self.dtype.numpy,
            )
        drawn = rng.uniform(self.low, self.high, self.shape)
        if self.dtype.numpy.kind == "c":
            drawn = drawn + 1j * rng.uniform(self.low, self.high, self.shape)
        return np.asarray(drawn).astype(self.dtype.numpy)


@frozen
class Sample:
    """One test case of an op: options by TFLite's field names, and operands (None = absent).

    ``accumulates``: products summed into one output element, for tolerances of class ACCUMULATE.
    """

    id: str
    fields: Mapping[str, Any]
    args: tuple[Arg | None, ...]
    version: int = 1
    accumulates: int = 1
    custom_options: bytes = b""

    @classmethod
    def of(cls, id: str, attributes: Any, *args: Arg | None, accumulates: int = 1) -> Sample:
        """A case of an op that no file has, of which nodes get their attributes as they are."""
        return cls(id, {"attributes": attributes}, args, accumulates=accumulates)


class Draw(Protocol):
    """What a generator of samples draws from; `tflgpu.conformance` brings one that finds the
    smallest failing example."""

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        ...

    def choice(self, options: Sequence[_T]) -> _T:
        """One of several; the first is taken for the simplest."""
        ...

    def size(self, most: int = 17) -> int:
        """A dimension: 1, a prime, a multiple of 4 or a neighbour of one."""
        ...
