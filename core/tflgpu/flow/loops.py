"""WHILE: round by round, or in blocks of rounds that are compiled as one graph each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import BudgetError, ModelError
from tflgpu.flow.pieces import Piece
from tflgpu.flow.program import FlowContext, Program, Stretch
from tflgpu.flow.rounds import AHEAD, Body, Counter, Rounds, rounds
from tflgpu.flow.steps import Env, Given, Told
from tflgpu.flow.store import Handle
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.session import Session

#: Operators in a compiled block of rounds, and rounds in it, at most.
_MOST_NODES = 512
_MOST_ROUNDS = 64
#: Kernels that a run launches, at most, where one round is compiled and repeated.
_MOST_DISPATCHES = 1024
#: Lengths of blocks that are kept compiled.
_KEPT = 4


class Loop:
    """A planned WHILE.

    Attributes:
        index: The operator's.
        results: What is known of its results beforehand.
    """

    def __init__(
        self,
        shared: FlowContext,
        index: int,
        where: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        cond: Program,
        body: Program,
        decide: Callable[[str, Given], bool],
        given: Sequence[Told],
    ) -> None:
        self.index = index
        self._where, self._inputs, self._outputs = where, inputs, outputs
        self._cond, self._body, self._decide = cond, body, decide
        stays = self._stays = _results(body, given) == tuple(given)
        self._given = tuple(given)
        self.results: tuple[Told, ...] = tuple(
            g if stays or isinstance(g, Handle) else None for g in given
        )
        self._blocks = Blocks.of(shared, cond, body, tuple(given)) if stays else None

    def __call__(self, env: Env) -> None:
        """Run the body as long as the condition holds."""
        state: list[Given] = [env[i] for i in self._inputs]
        state = self._run_by_rounds(state) if self._blocks is None else self._blocks.run(state)
        for i, made in zip(self._outputs, state, strict=True):
            # Copied, since the body's next run, for another operator perhaps, overwrites it.
            env[i] = np.array(made) if isinstance(made, np.ndarray) else made

    def pieces(self) -> list[Piece]:
        """The pieces that the loop compiled besides those of its subgraphs."""
        return [] if self._blocks is None else self._blocks.pieces()

    def prepare(self, contents: Sequence[Array | None]) -> None:
        """Compile what a run from these contents takes, as far as they are known."""
        if self._blocks is not None:
            self._blocks.prepare(contents)
        elif self._stays:
            self._cond.prepare(self._given)
            self._body.prepare(self._given)

    def _run_by_rounds(self, state: list[Given]) -> list[Given]:
        """The state after the last round. What the body gave last time is its operand now, and is
        kept from being overwritten where the body reads it late."""
        is_both = self._cond is self._body
        before = state  # what nothing here overwrites
        while self._decide(self._where, self._cond.run(state)[0]):
            # Asked for only now: at the shapes that the last round leaves, the body need not work
            # out.
            _keep(state, before, () if is_both else self._body.holds(state))
            before, state = state, self._body.run(state)
            if is_both:
                _keep(state, before, range(len(state)))
        return state


def _keep(state: list[Given], before: Sequence[Given], late: Iterable[int]) -> None:
    """Copy what a run is going to overwrite, in place."""
    for at in late:
        made = state[at]
        if made is not before[at] and isinstance(made, np.ndarray):
            state[at] = np.array(made)


def _results(body: Program, given: Sequence[Told]) -> tuple[Told, ...] | None:
    """What a body gives, as far as that is known; None where it does not work out at these shapes:
    so be it, as long as the condition lets it not run."""
    try:
        return body.results(given)
    except ModelError:
        return None


class Blocks:
    """A loop whose body is one graph, of the same shapes in every round."""

    def __init__(self, shared: FlowContext, cond: Body, body: Body) -> None:
        self._shared = shared
        self._body, self._cond = body, cond
        self._counter = Counter.of(body, cond, shared.ops)
        size = max(len(body.graph.nodes), 1)
        self._most_joined = max(1, min(_MOST_ROUNDS, _MOST_NODES // size))
        self._longest = 0  # not known yet
        self._one: Rounds | None = None  # what is repeated
        self._repeating: Repeating | None = None
        self._compiled: OrderedDict[int, _Block] = OrderedDict()
        self._step: _Block | _Carrying | None = None  # a round, and whether there is another
        self._first: _Block | None = None  # whether there is one at all

    @classmethod
    def of(
        cls, shared: FlowContext, cond: Program, body: Program, key: tuple[Told, ...]
    ) -> Blocks | None:
        """None where the subgraphs are more than a graph each."""
        if any(body.info.tensors[i].dtype is DType.STRING for i in body.info.inputs):
            return None  # no graph hands texts on
        found = [_as_body(program, program.start(key)) for program in (cond, body)]
        if found[0] is None or found[1] is None or not found[1].graph.nodes:
            return None
        return cls(shared, found[0], found[1])

    def run(self, state: Sequence[Given]) -> list[Given]:
        """The state after the last round."""
        arrays: list[Any] = list(state)
        if self._counter is None:
            return self._run_asking(arrays)
        while count := self._counter.count(arrays):
            for length in self._lengths(count):
                block = self._block(length)
                if block is None:
                    break  # from here on in blocks of other lengths
                arrays = block.run(arrays)
            else:
                if count < AHEAD:
                    break
        return arrays

    def prepare(self, contents: Sequence[Array | None]) -> None:
        """Compile what is known to be needed."""
        counter = self._counter
        if counter is None:
            self._asking()
            return
        if all(contents[at] is not None for at in counter.positions):
            try:
                count = counter.count([np.zeros(()) if c is None else c for c in contents])
            except BudgetError:
                return  # it is counted when it runs
            while any(self._block(n) is None for n in dict.fromkeys(self._lengths(count))):
                pass  # lengths are others now

    def pieces(self) -> list[Piece]:
        """The compiled pieces."""
        found = [*self._compiled.values(), self._step, self._first]
        return [b.piece for b in found if b is not None]

    def _lengths(self, count: int) -> list[int]:
        """The blocks of so many rounds: few, equal ones, and single rounds."""
        if count > 1 and not self._longest:
            self._longest = self._find_longest()
        blocks = -(-count // self._longest) if count > 1 else count
        if not blocks:
            return []
        length = count // blocks
        return [length] * blocks + [1] * (count - length * blocks)

    def _find_longest(self) -> int:
        """The most rounds in a block. One is compiled and repeated, where the device takes all of
        it and each result has its place; else as many are compiled as a graph can have."""
        self._one = rounds(self._body, 1)
        pairs = _carried(self._one, self._body.inputs)
        if pairs is not None:
            self._repeating = self._shared.pieces.repeating(self._one.graph, pairs)
        if self._repeating is not None:
            return max(1, _MOST_DISPATCHES // max(self._repeating.dispatches, 1))
        return self._most_joined

    def _block(self, length: int) -> _Block | None:
        """So many rounds; None where the device has no room for them, and others are to be asked
        for."""
        found = self._compiled.get(length)
        if found is None:
            made = self._made(length)
            if made is None:
                return None
            while len(self._compiled) >= _KEPT:
                self._compiled.popitem(last=False)[1].piece.close()
            found = self._compiled[length] = made
        self._compiled.move_to_end(length)
        return found

    def _made(self, length: int) -> _Block | None:
        if length > 1 and self._repeating is not None and self._one is not None:
            session = self._repeating.open(length)
            if session is None:  # what is compiled as one graph may go to the CPU
                self._repeating, self._longest = None, self._most_joined
                return None
            opened = self._shared.pieces.joined(session)
            return _Block(lambda _: opened, self._body, self._one)
        return _Block(self._shared.pieces.open, self._body, rounds(self._body, length))

    def _asking(self) -> tuple[_Block, _Block | _Carrying]:
        if self._first is None or self._step is None:
            opener, step = self._shared.pieces.open, rounds(self._body, 1, self._cond)
            self._first = _Block(opener, self._body, rounds(self._body, 0, self._cond))
            self._step = self._staying(step) or _Block(opener, self._body, step)
        return self._first, self._step

    def _staying(self, step: Rounds) -> _Carrying | None:
        """A round whose results stay on the device, but for whether there is another."""
        pairs, flag = _carried(step, self._body.inputs), step.outputs[-1]
        # What decides is read in every round.
        if not pairs or not isinstance(flag, Value) or any(flag.id == made for made, _ in pairs):
            return None
        repeating = self._shared.pieces.repeating(step.graph, pairs)
        session = None if repeating is None else repeating.open_carrying()
        if session is None:
            return None
        return _Carrying(self._shared.pieces.joined(session), self._body.inputs, step)

    def _run_asking(self, arrays: list[Any]) -> list[Given]:
        """A round at a time, which says whether there is another."""
        first, step = self._asking()
        *_, flag = first.run(arrays)
        if isinstance(step, _Carrying):
            return step.run(arrays) if flag.reshape(())[()] else arrays
        while flag.reshape(())[()]:
            *arrays, flag = step.run(arrays)
        return arrays


class _Block:
    """Rounds, compiled."""

    def __init__(self, opener: Callable[[Graph], Session], body: Body, made: Rounds) -> None:
        self.piece = Piece(made.graph, opener, {})
        self.piece.prepare()
        self._inputs = body.inputs
        self._outputs = made.outputs

    def run(self, state: Sequence[Any]) -> list[Any]:
        """The state after them; arrays that the next run overwrites, but for what it was given."""
        env = dict(zip(self._inputs, state, strict=True))
        self.piece(env)
        found: list[Any] = []
        for at, what in enumerate(self._outputs):
            if isinstance(what, Value):
                found.append(env[what.id])
            elif isinstance(what, int):
                # In another place it may be a result of the last run, which the next overwrites.
                found.append(state[what] if what == at else np.array(state[what]))
            else:
                found.append(what)
        return found


class _Carrying:
    """A round, compiled, that leaves what the next one reads where that reads it."""

    def __init__(self, session: Session, inputs: tuple[int, ...], made: Rounds) -> None:
        self.piece = Piece(made.graph, lambda _: session, {})
        self.piece.prepare()
        self._session = session
        self._inputs = inputs
        self._outputs = made.outputs

    def run(self, state: Sequence[Any]) -> list[Any]:
        """The state after all rounds, of which there is one at least; arrays that the next run of
        the loop overwrites, but for what it was given."""
        session = self._session
        arrays, carried = session.arrays, session.variables
        for i, given in zip(self._inputs, state, strict=True):
            if i in carried:
                np.copyto(carried[i], given)
            elif i in arrays:
                np.copyto(arrays[i], given)
        flag = self._outputs[-1]
        assert isinstance(flag, Value)
        more = True
        while more:
            session.run()
            more = bool(session.arrays[flag.id].reshape(())[()])
        return self._made(state)

    def _made(self, state: Sequence[Any]) -> list[Any]:
        """The state after the last round."""
        arrays, carried = self._session.arrays, self._session.variables
        return [
            state[at]
            if not isinstance(what, Value)
            else carried[i]
            if i in carried
            else arrays[what.id]
            for at, (i, what) in enumerate(zip(self._inputs, self._outputs[:-1], strict=True))
        ]


def _carried(one: Rounds, inputs: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Of a round: what it makes, and the input that this is in the next, by id. None where
    something changes its place, or is a constant."""
    found = []
    for at, (made, given) in enumerate(zip(one.outputs, inputs, strict=False)):
        if isinstance(made, Value):
            found.append((made.id, given))
        elif not isinstance(made, int) or made != at:
            return None
    return found


def _as_body(program: Program, stretch: Stretch) -> Body | None:
    steps = stretch.steps
    if not stretch.is_last or len(steps) != 1 or not isinstance(steps[0], Piece):
        return None
    return Body.of(steps[0].graph, program.info, stretch.constants)
