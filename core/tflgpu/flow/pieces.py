"""A compiled piece of a subgraph: an ordinary graph in an ordinary session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.flow.store import States
from tflgpu.ir.graph import Graph
from tflgpu.runtime.session import Session


class Piece:
    """Takes its operands from between the pieces and leaves its results there, until its next run;
    and those of ``kept``, tensors that are kept whoever needs them.

    Attributes:
        graph: What it computes.
    """

    def __init__(
        self,
        graph: Graph,
        open_session: Callable[[Graph], Session],
        states: States,
        kept: range = range(0),
    ) -> None:
        self.graph = graph
        self._open_session = open_session
        self._session: Session | None = None
        self._states = states
        self._kept = kept
        self._inputs = [v.id for v in graph.inputs]
        self._outputs = [v.id for v in graph.outputs]

    @property
    def session(self) -> Session | None:
        """What runs it; None before that was needed."""
        return self._session

    def prepare(self) -> Session:
        """What runs it, opened where it is not.

        Raises:
            DeviceError, UnsupportedError: as who opens it.
        """
        if self._session is None:
            self._session = self._open_session(self.graph)
            every = self._session.arrays
            self._outputs += [i for i in every if i in self._kept and i not in self._inputs]
        return self._session

    def __call__(self, env: dict[int, Any]) -> None:
        """Run it."""
        session = self._session or self.prepare()
        arrays = session.arrays
        for i in self._inputs:
            np.copyto(arrays[i], env[i])
        if session.variables:
            self._take_states(session)
        session.run()
        arrays = session.arrays
        for i in self._outputs:
            env[i] = arrays[i]

    def _take_states(self, session: Session) -> None:
        """State tensors of the same operator at other shapes come along where they fit."""
        for index, array in session.variables.items():
            if index in self._inputs:
                continue  # it came just now
            last = self._states.get(index)
            if last is not None and last is not array and last.shape == array.shape:
                np.copyto(array, last)
            self._states[index] = array

    def pieces(self) -> list[Piece]:
        """Itself."""
        return [self]

    def close(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._session.close()
