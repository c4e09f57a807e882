"""One subgraph of a model, planned stretch by stretch as its shapes become known, and run.

A stretch is a list of steps that need no further knowledge: compiled pieces, and what the host does
between them. It ends where the shape of something depends on numbers that only its steps compute.
What follows is planned for the shapes that came, and kept, a few of them at each such point.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import quoted
from tflgpu.flow.cut import Cut, Known, check_order, cut
from tflgpu.flow.device_variables import NOTHING, contents, keepable
from tflgpu.flow.dynamic import Dynamic
from tflgpu.flow.forward import forwarded
from tflgpu.flow.list_items import with_items_written
from tflgpu.flow.operators import CALL_ONCE, READ, VAR_HANDLE
from tflgpu.flow.pieces import KeepingPiece, Piece, PieceOpener
from tflgpu.flow.steps import Compiling, Env, Given, HostStep, Step, Told, key_of, told
from tflgpu.flow.store import Handle, VariableStore
from tflgpu.ir.graph import Graph
from tflgpu.ops.base import OpDef
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.build import Foreign
from tflgpu.tflite.model_file import ModelFile, OperatorInfo, SubgraphInfo

#: Shapes for which the rest of a subgraph is kept compiled, at each point where they come.
KEPT = 8
#: How often it is compiled for a device there. Shapes that never come again are the CPU's then.
PATIENCE = 24

#: Operators that only look at the state, or bring its first.
_LOOKING = frozenset({VAR_HANDLE, READ, CALL_ONCE})


@attrs.frozen(eq=False)
class FlowContext:
    """Values that all programs of a model share.

    Attributes:
        model: The file.
        ops: Op definitions by name.
        store: Its state.
        pieces: Makes pieces ready to run.
        main: The subgraph whose runs are an interpreter's: only there variables are kept by pieces.
        foreign: The CPU backend that runs operators that tflgpu does not define.
        warn: Takes what is wrong with the file but does no harm.
        host: Plans the operators that the host runs.
        keep_all: Whether all that is computed is kept.
        strict: Whether an index outside a tensor is an error.
        programs: Those of its subgraphs so far.
    """

    model: ModelFile
    ops: Mapping[str, OpDef]
    store: VariableStore
    pieces: PieceOpener
    main: int
    foreign: Foreign | None
    warn: Callable[[str], object]
    host: Host
    keep_all: bool = False
    strict: bool = False
    programs: dict[int, Program] = attrs.Factory(dict)

    def program(self, number: int) -> Program:
        """The program of a subgraph."""
        found = self.programs.get(number)
        if found is None:
            found = self.programs[number] = Program(self, number)
        return found


class Host(Protocol):
    """Plans the operators that the host runs: see `tflgpu.flow.host`."""

    def may_pass(
        self, shared: FlowContext, known: Known, operator: OperatorInfo, waiting: OperatorInfo
    ) -> bool:
        """Whether an operator may run before one that stands before it in the file."""

    def plan(
        self,
        shared: FlowContext,
        known: Known,
        operator: OperatorInfo,
        info: SubgraphInfo,
        given: Sequence[Told],
    ) -> HostStep:
        """An operator whose operands are known, as a step.

        Raises:
            ModelError, UnsupportedError: it, or a subgraph that it runs, does not work out at these
                shapes.
        """


@attrs.define(eq=False)
class Stretch:
    """Steps, and what comes after them.

    Attributes:
        steps: In order.
        constants: What need not be computed, by tensor.
        known: At its end.
        awaited: Tensors whose shapes say what follows; or ``dynamic``, an operator whose operands'
            contents do. Neither at the end of the subgraph.
        after: What followed, by what came, the latest last.
        misses: How often something was planned here.
        holds: Inputs of the subgraph that must not be changed by the pieces in it, because they are
            read by something else than the first of them.
    """

    known: Known
    steps: list[Step] = attrs.Factory(list)
    constants: dict[int, Any] = attrs.Factory(dict)
    awaited: tuple[int, ...] = ()
    dynamic: Dynamic | None = None
    after: OrderedDict[Any, Stretch] = attrs.Factory(OrderedDict)
    misses: int = 0
    holds: frozenset[int] = frozenset()

    @property
    def is_last(self) -> bool:
        """Whether the subgraph ends with it."""
        return not self.awaited and self.dynamic is None

    def pieces(self) -> list[Piece]:
        """Its compiled pieces, and those of all that followed it."""
        steps: list[object] = list(self.all_steps())
        return [piece for s in steps if isinstance(s, Compiling) for piece in s.pieces()]

    def all_steps(self) -> list[Step]:
        """Its steps, and those of all that followed it."""
        return self.steps + [step for s in self.after.values() for step in s.all_steps()]

    def close(self) -> None:
        """Release the pieces."""
        for piece in self.pieces():
            piece.close()


class Program:
    """Runs one subgraph, at any shapes. One run at a time.

    Attributes:
        number: Which.
        info: What the file says of it.
        evaluated: Operators that the host ran, since shapes depend on what they take.
        keepable: Which of its variables pieces may keep.
    """

    def __init__(self, shared: FlowContext, number: int) -> None:
        self.number = number
        info = forwarded(shared.model.subgraphs[number], shared.model.subgraphs)
        # Where every tensor is kept, those between the operators of the file are too; and only
        # these operators refuse to write an item that is not in the list.
        as_it_is = shared.keep_all or shared.strict
        self.info = info if as_it_is else with_items_written(info)
        self.evaluated: set[int] = set()
        # What runs again within a run could not be stepped back from.
        is_main = number == shared.main and not shared.keep_all
        self.keepable = keepable(self.info, shared.model.subgraphs) if is_main else NOTHING
        self._misses = 0
        self._path: list[Stretch] = []
        self._shared = shared
        self._starts: OrderedDict[tuple[Told, ...], Stretch] = OrderedDict()
        self._states = shared.store.states(number)
        self._kept = range(len(self.info.tensors)) if shared.keep_all else range(0)
        check_order(self.info)

    def run(self, given: Sequence[Given]) -> list[Given]:
        """Run it. What it gives is overwritten by its next run, and some of it may be what it was
        given.

        Raises:
            ModelError, UnsupportedError: it does not work out at these shapes.
            DeviceError, StateError: a step failed.
        """
        env = self.run_all(given)
        return [env[i] for i in self.info.outputs]

    def run_all(self, given: Sequence[Given]) -> Env:
        """As `run`; gives all tensors that are between its pieces."""
        stretch: Stretch | None = self.start(key_of(given))
        env: Env = dict(zip(self.info.inputs, given, strict=True))
        path = self._path = []
        while stretch is not None:
            path.append(stretch)
            env.update(stretch.constants)
            for step in stretch.steps:
                step(env)
            stretch = None if stretch.is_last else self._follow(stretch, env)
        return env

    def holds(self, given: Sequence[Given]) -> Sequence[int]:
        """Positions of what it is given that it may read after a piece of its own has run."""
        held = self.start(key_of(given)).holds
        return [at for at, i in enumerate(self.info.inputs) if i in held]

    def results(self, key: Sequence[Told]) -> tuple[Told, ...]:
        """What it gives for what it is given, as far as that is known before it runs. Compiles as
        far as that.

        Raises:
            ModelError, UnsupportedError: it does not work out at these shapes.
        """
        stretch = self.start(tuple(key))
        tensors = self.info.tensors
        return tuple(told(stretch.known, i, tensors[i].data) for i in self.info.outputs)

    def start(self, key: tuple[Told, ...]) -> Stretch:
        """The first stretch, for what it is given."""
        found = self._starts.get(key)
        if found is None:
            inputs = dict(zip(self.info.inputs, key, strict=True))
            known = Known(
                {i: s for i, s in inputs.items() if isinstance(s, tuple)},
                handles={i: h for i, h in inputs.items() if isinstance(h, Handle)},
                plain=self._misses >= PATIENCE,
                lazy=self.keepable.lazy,
            )
            self._misses += 1
            found = self._starts[key] = self._plan(known)
            _trim(self._starts)
        self._starts.move_to_end(key)
        return found

    def prepare(self, key: Sequence[Told]) -> None:
        """Open what a run takes, as far as that is known before it."""
        stretch: Stretch | None = self.start(tuple(key))
        self._path = []
        while stretch is not None:
            self._path.append(stretch)
            for step in stretch.steps:
                if isinstance(step, Piece):
                    step.prepare()
            stretch = self._guessed(stretch)

    def pieces(self) -> list[Piece]:
        """The compiled pieces so far, those of loops among them."""
        return [p for s in self._starts.values() for p in s.pieces()]

    def own_pieces(self) -> list[Piece]:
        """Those that have operators of this subgraph, of the last run."""
        return [s for s in self.steps() if isinstance(s, Piece)]

    def steps(self) -> list[Step]:
        """The steps of the last run, or before one those that are known."""
        return [step for stretch in self._path for step in stretch.steps]

    def close(self) -> None:
        """Release them."""
        for stretch in self._starts.values():
            stretch.close()
        self._starts.clear()

    # Planning

    def _guessed(self, stretch: Stretch) -> Stretch | None:
        """What probably comes after a stretch that ends with variables: these mostly have the
        shapes of the file, and what is compiled for them before the first run need not be compiled
        in it. Others are compiled when they come."""
        awaited = [self.info.tensors[i] for i in stretch.awaited]
        read = {o.outputs[0] for o in self.info.operators if o.name == READ}
        is_known = all(
            t.index in read and -1 not in t.shape_signature and (t.shape or t.has_rank)
            for t in awaited
        )
        if not awaited or not is_known:
            return None
        key = tuple(t.shape for t in awaited)
        if key not in stretch.after:
            known = stretch.known.copy()
            known.shapes.update(zip(stretch.awaited, key, strict=True))
            try:
                stretch.after[key] = self._plan(known)
            except (ModelError, UnsupportedError):
                return None  # which a run will say, where they have these shapes indeed
        return stretch.after[key]

    def _follow(self, stretch: Stretch, env: Env) -> Stretch:
        """What comes after a stretch, by what it left."""
        dynamic = stretch.dynamic
        if dynamic is None:
            key: Any = tuple(env[i].shape for i in stretch.awaited)
        else:
            for i in dynamic.operator.inputs:
                if i in env:
                    env[i] = contents(env[i])
            key = dynamic.key(env, can_promote=stretch.misses < PATIENCE)
        found = stretch.after.get(key)
        if found is not None:
            stretch.after.move_to_end(key)
            return found
        known = stretch.known.copy()
        known.plain = known.plain or stretch.misses >= PATIENCE
        if dynamic is None:
            known.shapes.update(zip(stretch.awaited, key, strict=True))
        elif dynamic.tell(known, env):
            self.evaluated.add(dynamic.operator.index)
        stretch.misses += 1
        found = stretch.after[key] = self._plan(known)
        _trim(stretch.after)
        return found

    def _plan(self, known: Known) -> Stretch:
        stretch = Stretch(known)
        try:
            self._fill(stretch)
        except BaseException:
            stretch.close()
            raise
        self._settle(stretch)
        return stretch

    def _fill(self, stretch: Stretch) -> None:
        shared, known, info = self._shared, stretch.known, self.info
        while True:
            # First what variables hold, so that what depends on it and what does not are one graph.
            looked, unknown = self._by_host(stretch, _LOOKING)
            if unknown:
                stretch.awaited = tuple(unknown)
                return
            found = cut(
                info, known, shared.ops, shared.model.subgraphs, shared.warn, shared.foreign
            )
            known.done |= found.done
            known.constants.update(found.constants)
            if found.graph is not None:
                stretch.steps.append(self._piece(found, found.graph, plain=known.plain))
                known.shapes.update(found.made)
            moved, unknown = self._by_host(stretch)
            if unknown:
                stretch.awaited = tuple(unknown)
                return
            if found.graph is None and not moved and not looked:
                break
        if found.dynamic:
            stretch.dynamic = Dynamic.of(found.dynamic[0], info, shared.ops, shared.pieces.plain)
            return
        left = [o for o in info.operators if o.index not in known.done]
        if left:
            raise ModelError(
                f"subgraph {self.number} ({quoted(info.name)}): operator {left[0].index} "
                f"({left[0].name}) can never run: its operands wait for each other"
            )

    def _piece(self, found: Cut, graph: Graph, *, plain: bool) -> Piece:
        shared = self._shared
        inputs, outputs = ({v.id for v in side} for side in (graph.inputs, graph.outputs))
        keeps = [
            k
            for k in self.keepable.keeps.values()
            if k.read in inputs and k.made in outputs and k.users <= found.done
        ]
        if keeps and not plain:
            return KeepingPiece(graph, shared.pieces.open, self._states, keeps, shared.store)
        opener = shared.pieces.plain if plain else shared.pieces.open
        return Piece(graph, opener, self._states, self._kept)

    def _by_host(
        self, stretch: Stretch, names: Collection[str] | None = None
    ) -> tuple[bool, list[int]]:
        """Plan the operators that are next of those that the host runs, or of some names: whether
        there were any, and their results whose shapes are not known."""
        shared, known, moved = self._shared, stretch.known, False
        unknown: list[int] = []
        waiting: list[OperatorInfo] = []
        for operator in self.info.operators:
            if operator.index in known.done or not run_by_host(operator):
                continue
            tells = [told(known, i, self.info.tensors[i].data) for i in operator.inputs]
            if (
                (names is not None and operator.name not in names)
                or None in tells
                or not all(shared.host.may_pass(shared, known, operator, w) for w in waiting)
            ):
                waiting.append(operator)
                continue
            step = shared.host.plan(shared, known, operator, self.info, tells)
            moved = True
            known.done.add(operator.index)
            for i in operator.inputs:  # contents from the file, and those computed beforehand
                data = known.constants.get(i, self.info.tensors[i].data)
                if data is not None:
                    stretch.constants[i] = data
            stretch.steps.append(step)
            for i, result in zip(operator.outputs, step.results, strict=True):
                if isinstance(result, Handle):
                    known.handles[i] = result
                elif result is not None:
                    known.shapes[i] = result
                else:
                    unknown.append(i)
        return moved, unknown

    def _settle(self, stretch: Stretch) -> None:
        """Constants among the outputs; and which inputs are read by more than the first piece."""
        known = stretch.known
        if stretch.is_last:
            for i in self.info.outputs:
                data = known.constants.get(i, self.info.tensors[i].data)
                if data is not None:
                    stretch.constants[i] = data
        only_first = (
            stretch.is_last and len(stretch.steps) == 1 and isinstance(stretch.steps[0], Piece)
        ) or not stretch.steps
        inputs = set(self.info.inputs)
        stretch.holds = frozenset(inputs & set(self.info.outputs) if only_first else inputs)


def _trim(kept: OrderedDict[Any, Stretch]) -> None:
    """Give up what was not used for longest."""
    while len(kept) > KEPT:
        kept.popitem(last=False)[1].close()
