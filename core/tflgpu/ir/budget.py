"""Limits the work that a file may cause before a run: one budget, one error.

A file of a few bytes can ask for any amount of work: values that share one another, subgraphs that
run subgraphs, loops, constants that are computed from constants. Every such piece of work spends
from a `Budget` first, and a file that asks for more than any model needs is refused. A run has no
budget: it takes as long as it takes, and Ctrl-C ends it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from tflgpu.errors import BudgetError, ModelError
from tflgpu.ir.dtypes import DType

MAX_RANK = 32
"""The most dimensions a tensor may have: NumPy's limit, in versions before 2."""

MAX_BYTES = 2**31
"""The most bytes one tensor may take. Kernels index with signed 32-bit numbers, and a `.tflite`
file is not larger either; what is larger is a mistake or an attack, and would fill the memory."""

MAX_RESULTS = 1 << 16
"""The most results one operator may have."""

DEEPEST = 32
"""The most subgraphs inside each other. Converters make one for each loop or branch of a source."""

# Whatever is stored in fewer bits is computed in 32.
_LEAST_ITEMSIZE = 4

#: What each kind of work is called in messages.
_KINDS = {
    "nodes": "operators, tensors and values to be looked at",
    "rounds": "rounds of loops to be counted",
    "nbytes": "bytes to be computed or copied",
}


class Budget:
    """How much of each kind of work is left."""

    def __init__(self, **limits: int) -> None:
        """``nodes``, ``rounds`` and ``nbytes``: the most of each kind."""
        self._limits = limits
        self._left = dict(limits)

    def spend(self, kind: str, amount: int, where: str) -> None:
        """Account for work that is about to be done.

        Raises:
            BudgetError: it is more than what is left; ``where`` names what asks for it.
        """
        self._left[kind] -= amount
        if self._left[kind] < 0:
            raise BudgetError(
                f"{where}: the file asks for more than {self._limits[kind]:,} {_KINDS[kind]} "
                "before the model can run, which no model needs; it is damaged or was made to do "
                "so: fetch or convert it again"
            )


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextlib.contextmanager
def budget_of(size: int) -> Iterator[None]:
    """While inside, work for a file of so many bytes is limited. Inside another one nothing
    changes."""
    if _current.get() is not None:
        yield
        return
    # Files with many operators are large; the constants of a file are decompressed, at most.
    made = Budget(nodes=(1 << 20) + size // 8, rounds=1 << 16, nbytes=MAX_BYTES + 16 * size)
    token = _current.set(made)
    try:
        yield
    finally:
        _current.reset(token)


def spend(kind: str, amount: int, where: str) -> None:
    """As `Budget.spend`, of the budget in use; nothing where there is none, as in a run."""
    budget = _current.get()
    if budget is not None:
        budget.spend(kind, amount, where)


def bytes_of(shape: Sequence[int], dtype: DType) -> int:
    """The bytes that a tensor takes while a model runs, as a whole number of any size."""
    return math.prod(shape) * max(dtype.itemsize, _LEAST_ITEMSIZE)


def check_size(shape: Sequence[int], dtype: DType, what: str, most: int = MAX_BYTES) -> None:
    """Check that a tensor can be allocated, in ``most`` bytes; ``what`` names it.

    Raises:
        ModelError: it has a negative size.
        BudgetError: it has too many dimensions, or too many bytes.
    """
    if len(shape) > MAX_RANK:
        raise BudgetError(f"{what} has {len(shape)} dimensions; at most {MAX_RANK} are supported")
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has a negative size in its shape {list(shape)}")
    # An empty tensor takes no bytes, but its other sizes are multiplied on the way.
    size = bytes_of([max(d, 1) for d in shape], dtype)
    if size > most:
        raise BudgetError(
            f"{what} is too large: shape {list(shape)} takes {size:,} bytes; a tensor has at most "
            f"{most:,}"
        )
