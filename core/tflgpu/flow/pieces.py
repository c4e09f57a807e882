"""A compiled piece of a subgraph: an ordinary graph in an ordinary session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from tflgpu.flow.device_variables import PieceVariable, contents, lent
from tflgpu.flow.store import DeviceVariable, Handle, State, States, VariableStore
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph
from tflgpu.runtime.loaded_part import Traffic
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.session import Session

#: What opens a graph with its pairs on a device where there is one, what opens it on the CPU, and
#: what makes it ready to be run several times over.
Opens = tuple[
    Callable[[Graph, Sequence[tuple[int, int]]], Session],
    Callable[[Graph], Session],
    Callable[[Graph, Sequence[tuple[int, int]]], Union[Repeating, None]],
]


class PieceOpener:
    """Makes the pieces of one session ready to run.

    Attributes:
        repeating: Makes a graph ready to be run several times over in one run, where that can be;
            with it come, by id, each result that is an input the next time.
        opened: How many sessions of pieces there were so far.
        moved: Bytes that they copy in a run.
    """

    def __init__(
        self,
        session: Callable[[Graph, Sequence[tuple[int, int]]], Session],
        plain: Callable[[Graph], Session],
        repeating: Callable[[Graph, Sequence[tuple[int, int]]], Repeating | None],
    ) -> None:
        """``session`` opens one on a device where there is one, ``plain`` on the CPU."""
        self._session, self._plain, self.repeating = session, plain, repeating
        self.opened = 0
        self.moved = Traffic()

    def open(self, graph: Graph, pairs: Sequence[tuple[int, int]] = ()) -> Session:
        """A session, on a device where there is one; it keeps results that are inputs of the next
        run, where that can be: ``pairs`` of a result and an input."""
        return self.joined(self._session(graph, pairs))

    def plain(self, graph: Graph) -> Session:
        """A session on the CPU."""
        return self.joined(self._plain(graph))

    def joined(self, session: Session) -> Session:
        """The session of a piece, which is one more."""
        self.opened += 1  # reports are old then
        session.traffic = self.moved
        return session


class Piece:
    """One compiled graph: reads its operands from the run's environment and leaves its results
    there, and the tensors of ``kept``, which stay readable after a run.

    Attributes:
        graph: What it computes.
        session: What runs it; None before `prepare`.
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
        self.session: Session | None = None
        self._states = states
        self._kept = kept
        self._inputs = [v.id for v in graph.inputs]
        self._outputs = [v.id for v in graph.outputs]

    def prepare(self) -> Session:
        """The session that runs the piece, opened at the first call.

        Raises:
            DeviceError, UnsupportedError: as who opens it.
        """
        if self.session is None:
            self.session = self._open_session(self.graph)
            every = self.session.arrays
            self._outputs += [i for i in every if i in self._kept and i not in self._inputs]
        return self.session

    def __call__(self, env: dict[int, Any]) -> None:
        """Run it."""
        session = self.session or self.prepare()
        arrays = session.arrays
        for i in self._inputs:
            np.copyto(arrays[i], contents(env[i]))
        self._take(session, env)
        session.run()
        arrays = session.arrays
        for i in self._outputs:
            env[i] = arrays[i]

    def _take(self, session: Session, env: dict[int, Any]) -> None:
        """State tensors of the same operator at other shapes come along where they fit."""
        for index, array in session.variables.items():
            if index in self._inputs:
                continue  # it came just now
            last = self._states.get(index)
            if last is not None and last.array is array:
                continue
            if last is not None and last.array.shape == array.shape:
                np.copyto(array, last.array)
            self._states[index] = State(array, session.at_rest(index))

    def pieces(self) -> list[Piece]:
        """Itself."""
        return [self]

    def close(self) -> None:
        """Release the session."""
        if self.session is not None:
            self.session.close()


class KeepingPiece(Piece):
    """A piece that keeps variables, as far as what runs it can: a `tflgpu.flow.store.Owner`.

    Attributes:
        count: Runs that were begun: what was lent in another is not what it was.
        keeps: The variables that it keeps, once it is prepared.
        why: Why it does not keep some, once it is prepared.
    """

    def __init__(
        self,
        graph: Graph,
        open_session: Callable[[Graph, Sequence[tuple[int, int]]], Session],
        states: States,
        keeps: Sequence[PieceVariable],
        store: VariableStore,
    ) -> None:
        pairs = [(k.made, k.read) for k in keeps]
        super().__init__(graph, lambda g: open_session(g, pairs), states)
        self.count = 0
        self.why: Mapping[Handle, str] = {}
        self.keeps = list(keeps)
        self._store = store
        self._reads: dict[Handle, int] = {}
        # From before a run: what is in host memory, and how often the session had committed.
        self._before: dict[int, Array] = {}
        self._commits: tuple[int, ...] = ()

    def prepare(self) -> Session:
        """The session, opened at the first call; decides which variables it keeps."""
        if self.session is not None:
            return self.session
        session = super().prepare()
        kept = [k for k in self.keeps if k.read in session.kept]
        self.why = {
            k.handle: session.not_kept[k.read] for k in self.keeps if k.read in session.not_kept
        }
        self.keeps = kept
        self._reads = {k.handle: k.read for k in kept}
        inputs, made = {k.read for k in kept}, {k.made for k in kept}
        self._inputs = [i for i in self._inputs if i not in inputs]
        self._outputs = [i for i in self._outputs if i not in made]
        return session

    def __call__(self, env: dict[int, Any]) -> None:
        """Run it."""
        super().__call__(env)
        for keep in self.keeps:
            self._store.owned(keep.handle, self)
            env[keep.made] = self.held(keep.handle)

    def _take(self, session: Session, env: dict[int, Any]) -> None:
        if not self.keeps:
            super()._take(session, env)
            return
        self._upload(session, env)
        self.count += 1

    def _upload(self, session: Session, env: dict[int, Any]) -> None:
        """Upload the contents of variables that were assigned outside of this piece."""
        given = [k for k in self.keeps if not self._store.is_owner(k.handle, self)]
        if not given:
            return
        values = [contents(env[k.read]) for k in given]
        if len(given) == len(self.keeps):
            session.reset_variables()  # nothing of what it had counts
        variables = session.variables
        own = [k.read for k in self.keeps if k not in given]
        # These are at home now, and the run is about to change them there.
        self._before.update((i, variables[i].copy()) for i in own if i not in self._before)
        for keep, value in zip(given, values, strict=True):
            np.copyto(variables[keep.read], value)

    # What a store asks of an owner

    def held(self, handle: Handle) -> DeviceVariable:
        """A variable, as it is on the device now."""
        return lent(self, handle, self.prepare().arrays[self._reads[handle]])

    def peek(self, handle: Handle) -> Array:
        """A copy of what a variable holds."""
        return self.prepare().peek(self._reads[handle])

    def begin(self) -> None:
        """Save what `step_back` needs to undo the run that begins."""
        session, own = self.prepare(), set(self._reads.values())
        at_hand = session.at_hand
        self._before = {i: at_hand[i].copy() for i in own if i in at_hand}
        self._commits = session.commits

    def step_back(self) -> None:
        """Give the variables the contents that they had at `begin`."""
        at_hand = self.prepare().at_hand
        for i, array in self._before.items():
            if i in at_hand:
                np.copyto(at_hand[i], array)
        self.prepare().step_back_to(self._commits)

    def close(self) -> None:
        """Release the session; what variables hold comes to host memory, if the device still gives
        it."""
        try:
            super().close()
        finally:
            self._store.give_back(self)
