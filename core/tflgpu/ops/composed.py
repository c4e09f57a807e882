"""Shared by ops that stand for composites: test inputs for a reading, and attributes."""

from __future__ import annotations

import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import Operand, Operands


def draw_one(rng: np.random.Generator, operand: Operand) -> Array:
    """Numbers for a trial: floats in [-3, 3), whole numbers from 0 to 2, booleans."""
    if operand.dtype is DType.BOOL:
        return rng.random(operand.shape) < 0.5
    if operand.dtype.is_int:
        return rng.integers(0, 3, operand.shape, dtype=operand.dtype.numpy)
    return rng.uniform(-3.0, 3.0, operand.shape).astype(operand.dtype.numpy)


def draw_all(rng: np.random.Generator, operands: Operands) -> list[Array | None]:
    """`draw_one` for each operand."""
    return [None if operand is None else draw_one(rng, operand) for operand in operands]


def there(operands: Operands, least: int, most: int) -> list[Operand]:
    """A composite's operands, all of them given.

    Raises:
        UnsupportedError: there are fewer than ``least`` or more than ``most``, or one is absent.
    """
    found = [operand for operand in operands if operand is not None]
    if len(found) != len(operands):
        raise UnsupportedError(
            f"its operand {list(operands).index(None)} is absent, or nothing is made of it when "
            "the model runs"
        )
    if not least <= len(found) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise UnsupportedError(f"it has {len(found)} operands, and {wanted} are known")
    return found
