"""A compiled piece of a subgraph: an ordinary graph in an ordinary session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph
from tflgpu.runtime.session import Session

#: By state tensor: the array of the session that ran last with it.
States = dict[int, Array]


class Piece:
    """Takes its operands from between the pieces and leaves its results there, until its next run;
    and those of ``kept``, tensors that are kept whoever needs them.

    Attributes:
        graph: What it computes.
        session: What runs it.
    """

    def __init__(
        self,
        graph: Graph,
        open_session: Callable[[Graph], Session],
        states: States,
        kept: range = range(0),
    ) -> None:
        self.graph = graph
        self.session = open_session(graph)
        self._states = states
        self._inputs = [v.id for v in graph.inputs]
        self._outputs = [v.id for v in graph.outputs]
        self._outputs += [i for i in self.session.arrays if i in kept and i not in self._inputs]

    def __call__(self, env: dict[int, Any]) -> None:
        """Run it."""
        session = self.session
        arrays = session.arrays
        for i in self._inputs:
            np.copyto(arrays[i], env[i])
        if session.variables:
            self._take_states()
        session.run()
        arrays = session.arrays
        for i in self._outputs:
            env[i] = arrays[i]

    def _take_states(self) -> None:
        """State tensors of the same operator at other shapes come along where they fit."""
        for index, array in self.session.variables.items():
            last = self._states.get(index)
            if last is not None and last is not array and last.shape == array.shape:
                np.copyto(array, last)
            self._states[index] = array

    def close(self) -> None:
        """Release the session."""
        self.session.close()
