"""Tensors that were set or read before: the next time asks little.

`set_tensor` and `get_tensor` look at an index, a type, a shape, and at where the tensor is now. For
a small model run many thousand times a second that is a good part of all that Python does. What was
found stays right as long as the session has the same arrays and nothing is bound; anything else
asks anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tflgpu.interpreter.copy import copy
from tflgpu.interpreter.pool import ResultPool
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.session import Session


class Known:
    """Of one subgraph, whose results come from a pool."""

    def __init__(self, pool: ResultPool) -> None:
        self._pool = pool
        self._arrays: Mapping[int, Array] = {}
        self._inputs: dict[int, Array] = {}
        self._outputs: set[int] = set()

    def put(self, session: Session, index: Any, value: Any) -> bool:
        """Copy a value into an input that was set before; False where that has to be looked at."""
        if type(value) is not np.ndarray or not self._holds(session, index):
            return False
        target = self._inputs.get(index)
        if target is None or value.shape != target.shape or value.dtype != target.dtype:
            return False
        copy(target, value)
        return True

    def copied(self, session: Session, index: Any) -> Array | None:
        """An output that was read before, for the caller; None where that has to be looked at."""
        if self._holds(session, index) and session.complete and index in self._outputs:
            return self._pool.copied(self._arrays[index])
        return None

    def learn_input(self, session: Session, index: int, target: Array, source: Array) -> None:
        """That a value was copied into an input, which is not bound to anything."""
        if source.dtype == target.dtype and index not in session.kept:
            self._turn_to(session)
            self._inputs[index] = target

    def learn_output(self, session: Session, index: int) -> None:
        """That an output was copied, which is neither bound nor lent."""
        if session.arrays.get(index) is not None and index not in session.kept:
            self._turn_to(session)
            self._outputs.add(index)

    def forget(self) -> None:
        """Something changed that has a say."""
        self._arrays = {}
        self._inputs.clear()
        self._outputs.clear()

    # Inside

    def _turn_to(self, session: Session) -> None:
        if session.arrays is not self._arrays:
            self.forget()
            self._arrays = session.arrays

    def _holds(self, session: Session, index: Any) -> bool:
        # Another number that equals an index (True, 1.0) is told what it is.
        return type(index) is int and session.arrays is self._arrays and not session.inherited
