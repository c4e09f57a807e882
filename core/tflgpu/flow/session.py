"""`FlowSession`: the session of a model that no single graph can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from tflgpu.backend_kit.forks import Holder
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import OperatorReport, Refusal
from tflgpu.compiler.report_values import Place as RunsOn
from tflgpu.errors import AllocationError, ModelError, TflgpuError
from tflgpu.flow.host import HostOperators
from tflgpu.flow.loops import Loop
from tflgpu.flow.operators import ASSIGN, CALL_ONCE, READ, VAR_HANDLE, called, handle_of, reached
from tflgpu.flow.pieces import KeepingPiece, Opens, Piece, PieceOpener
from tflgpu.flow.program import FlowContext, Program
from tflgpu.flow.store import DeviceVariable, Handle, VariableStore
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Shape
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import check_held
from tflgpu.runtime.places import Place
from tflgpu.runtime.session import Session
from tflgpu.tflite.bodies import RUN_BY_HOST, run_by_host
from tflgpu.tflite.build import Foreign
from tflgpu.tflite.model_file import ModelFile, OperatorInfo
from tflgpu.tflite.result_types import settled_model

#: Who runs the operators between the pieces, as reports name it.
_HOST = "host"


class FlowSession(Session):
    """Runs a subgraph by its `Program`. Its arrays are what lies between the pieces after a run.

    Raises:
        ModelError, UnsupportedError: it does not work out at these shapes.
        DeviceError: a piece could not be loaded.
    """

    comes_by_run = True
    _was_broken = False  # when it was closed, and its pieces were given up

    def __init__(
        self,
        model: ModelFile,
        number: int,
        shapes: Mapping[int, Shape],
        ops: Mapping[str, OpDef],
        opens: Opens,
        store: VariableStore,
        foreign: Foreign | None,
        *,
        preserve_all: bool = False,
        strict: bool = False,
    ) -> None:
        model, pieces = settled_model(model, ops), PieceOpener(*opens)
        info = model.subgraphs[number]
        graph = Graph(info.name or "main")
        for i, dtype in (
            *((i, info.tensors[i].dtype) for i in info.inputs),
            *((i, info.tensors[i].dtype.unpacked) for i in info.outputs),
        ):
            check_held(dtype, i, info.tensors[i].name, "nothing here runs", texts=True)
        for i in dict.fromkeys(info.inputs):
            tensor = info.tensors[i]
            shape = shapes.get(i, tensor.shape)
            check_size(shape, tensor.dtype, f"input {i}")
            graph.inputs.append(graph.add_value(shape, tensor.dtype, name=tensor.name, id=i))
        self._store = store
        self._info = info
        self._model = model
        self._pieces = pieces
        self._shared = FlowContext(
            model,
            ops,
            store,
            pieces,
            number,
            foreign,
            _quietly,
            HostOperators(),
            preserve_all,
            strict,
        )
        self._program: Program = self._shared.program(number)
        self._told = (-1, -1)
        super().__init__(graph, (), DelegationReport(0, 0), {})
        try:
            self._program.prepare([graph.values[i].shape for i in info.inputs])
            self.report = self._report()
        except BaseException:
            self._close_programs()
            raise
        self._inputs = [self._arrays[i] for i in info.inputs]
        self._given_tensors = frozenset(info.inputs)
        self._shown = None if preserve_all else frozenset(info.outputs)  # None: all are
        self._give_known()

    @property
    def is_broken(self) -> bool:
        """Whether a run of any piece failed, so that the session must be opened again."""
        # Asked before every run: what came to its end broke nothing.
        if self._was_broken or self.complete:
            return self._was_broken
        return any(session.is_broken for session in self._sessions())

    def known_shapes(self) -> dict[int, Shape]:
        """Shapes of tensors, as far as they are known before a run."""
        stretch = self._program.start(tuple(a.shape for a in self._inputs))
        return dict(stretch.known.shapes)

    def _give_known(self) -> None:
        """Outputs that are there before the first run: of shapes that every run gives."""
        known = self.known_shapes()
        for i in self._info.outputs:
            tensor = self._info.tensors[i]
            if i not in self._arrays and tensor.data is None and i in known:
                self._arrays[i] = tensor.dtype.unpacked.blank(known[i])

    @property
    def inner(self) -> Sequence[tuple[Session, bool]]:
        """The sessions of the pieces so far."""
        own = {id(session) for session in _opened(self._program.own_pieces())}
        return [(session, id(session) in own) for session in self._sessions()]

    def run(self) -> None:
        """As `Session.run`, with the policies of its pieces. A run that fails leaves variables as
        they were."""
        self._check_open()
        before = self._store.snapshot()
        moved = self._pieces.moved
        moved.to_device = moved.to_host = 0
        self.complete = False
        try:
            env = self._program.run_all(self._inputs)
            for i in self._info.outputs:
                if isinstance(env.get(i), DeviceVariable):
                    env[i] = env[i].array()
        except BaseException as error:
            self._store.restore(before)
            if isinstance(error, ModelError) and not isinstance(error, RuntimeError):
                raise AllocationError(f"with what was computed: {error}") from error
            if isinstance(error, MemoryError) and not isinstance(error, TflgpuError):
                raise AllocationError(
                    "not enough memory for the tensors that this run makes, which grow with what "
                    "it was given or from round to round of a loop"
                ) from error
            raise
        arrays, given, shown = self._arrays, self._given_tensors, self._shown
        for i, array in env.items():
            if i in given or not isinstance(array, np.ndarray):
                continue
            # A view of an output is no way to write into an input, a variable or a constant.
            ours = not array.flags.writeable or any(array is a for a in self._inputs)
            arrays[i] = np.array(array) if ours and (shown is None or i in shown) else array
        if self._edition != self._told:
            self.report = self._report()
        self.traffic.runs += 1
        self.traffic.to_device += moved.to_device
        self.traffic.to_host += moved.to_host
        self.complete = True

    def put(self, value_id: int, place: Place | None) -> Unsupported | None:
        """Refuses: what a piece reads and makes can differ from run to run."""
        return None if place is None else self.refusal(value_id)

    def refusal(self, value_id: int) -> Unsupported:
        """The reason, which is the same for all tensors."""
        return Unsupported(
            "the model has control flow, resource variables or shapes that only a run decides, so "
            "that what reads and makes its tensors can change from run to run"
        )

    def lend(self, value_id: int) -> Array | None:
        """Nothing: the pieces keep their arrays."""
        return None

    def settle(self) -> None:
        """Nothing is lent."""

    def reset_variables(self) -> None:
        """State tensors get their rest values, and resource variables what they are in a model just
        loaded."""
        self._store.reset()
        for session in self._sessions():
            session.reset_variables()

    def forget_states(self) -> None:
        """As `Session.forget_states`: the store has them, and others run other subgraphs with
        it."""
        self._store.forget_states(reached(self._model.subgraphs, [self._program.number]))

    def close(self) -> None:
        """Release every piece; twice is harmless."""
        self._was_broken = self.is_broken
        self.is_closed = True
        if not self.inherited:
            self._close_programs()

    def after_fork(self) -> None:
        """A child may not touch what is on a device; what the CPU runs it may."""
        if any(not part.on_cpu for session in self._sessions() for part in session.parts):
            Holder.after_fork(self)
            self.is_closed = True

    # Inside

    def _sessions(self) -> list[Session]:
        return _opened([p for program in self._shared.programs.values() for p in program.pieces()])

    def _close_programs(self) -> None:
        # Programs know what has them all. What is closed is freed without Python's collector.
        for program in self._shared.programs.values():
            program.close()
        self._shared.programs.clear()

    @property
    def _edition(self) -> tuple[int, int]:
        """What a report depends on, near enough: who opens something, or runs what it did not, adds
        to it."""
        kept = self._keeping() if self._program.keepable.keeps else ()
        home = sum(p.session is not None and bool(p.session.why_home) for p in kept)
        return self._pieces.opened, len(self._program.evaluated) + home

    def _report(self) -> DelegationReport:
        """What the pieces of this subgraph say, and of each operator between them what it is
        about."""
        self._told = self._edition
        found = [session.report for session in _opened(self._program.own_pieces())]
        rows: dict[int, OperatorReport] = {}
        refusals: dict[int, Refusal] = {}
        for report in found:
            rows.update((r.node, r) for r in report.operators)
            refusals.update((r.node, r) for r in report.refusals)
        kept = self._kept_on_device(rows)
        for operator in self._info.operators:
            row = kept.get(self._handle(operator))
            if row is not None:
                rows[operator.index] = attrs.evolve(
                    row,
                    node=operator.index,
                    op=operator.name,
                    inputs=self._names(operator.inputs),
                    outputs=self._names(operator.outputs),
                    seconds=None,
                    gain=None,
                )
                continue
            if run_by_host(operator):
                code, reason = ReasonCode.CONTROL_FLOW, self._reason(operator)
            elif operator.index in self._program.evaluated - rows.keys():
                code = ReasonCode.UNSUPPORTED_FORM
                reason = "the shapes of its results depend on what its operands hold"
            else:
                continue
            index, name = operator.index, operator.name
            rows[index] = OperatorReport(
                index,
                name,
                self._names(operator.inputs),
                self._names(operator.outputs),
                RunsOn.CPU,
                runs_on=_HOST,
                code=code,
                reason=reason,
            )
            refusals[index] = Refusal(index, name, reason, _HOST, code)
        every = [*found, *(session.report for session in self._sessions())]
        first = next((r for r in every if r.backend), every[0] if every else None)
        report = DelegationReport(0, 0) if first is None else first
        parts = [part for r in found for part in r.parts]
        return attrs.evolve(
            report,
            total_nodes=len(rows),
            delegated_nodes=len(rows.keys() - refusals.keys()) if parts else 0,
            refusals=tuple(refusals[i] for i in sorted(refusals)),
            partitions=sum(r.partitions for r in found),
            dispatches=sum(r.dispatches for r in found),
            operators=tuple(rows[i] for i in sorted(rows)),
            parts=tuple(attrs.evolve(p, number=n) for n, p in enumerate(parts)),
            seconds=None,
            cpu_seconds=None,
        )

    def _keeping(self) -> list[KeepingPiece]:
        """The pieces of the last run that keep variables."""
        return [p for p in self._program.own_pieces() if isinstance(p, KeepingPiece)]

    def _handle(self, operator: OperatorInfo) -> Handle | None:
        """The variable that an operator names, reads or assigns to, as far as this subgraph
        says."""
        if operator.is_custom or operator.name not in (VAR_HANDLE, READ, ASSIGN):
            return None
        named = {
            o.outputs[0]: handle_of(o)
            for o in self._info.operators
            if o.name == VAR_HANDLE and not o.is_custom
        }
        tensor = operator.outputs[0] if operator.name == VAR_HANDLE else operator.inputs[0]
        return named.get(tensor)

    def _kept_on_device(
        self, rows: Mapping[int, OperatorReport]
    ) -> dict[Handle | None, OperatorReport]:
        """Of variables that stay there, the row of the operator that makes what they become."""
        makers = {i: o.index for o in self._info.operators for i in o.outputs}
        found: dict[Handle | None, OperatorReport] = {}
        for piece in self._keeping():
            if piece.session is not None and not piece.session.why_home:
                found.update((k.handle, rows[makers[k.made]]) for k in piece.keeps)
        return found

    def _why_home(self, handle: Handle | None) -> str:
        """Why a variable is not on a device, where there is one."""
        if handle is None or not any(s.report.backend for s in self._sessions()):
            return ""
        found = self._program.keepable.why.get(handle, "")
        for piece in self._keeping():
            if piece.session is not None:
                kept = any(k.handle == handle for k in piece.keeps)
                found = piece.why.get(handle) or (piece.session.why_home if kept else "") or found
        return f": {found}" if found else ""

    def _names(self, tensors: tuple[int, ...]) -> tuple[str, ...]:
        return tuple("" if i < 0 else self._info.tensors[i].name for i in tensors)

    def _reason(self, operator: OperatorInfo) -> str:
        bodies = called(operator)
        if operator.is_custom or (operator.texts and operator.name not in RUN_BY_HOST):
            return "texts (strings), which are in host memory and nowhere else"
        if not bodies:
            why = self._why_home(self._handle(operator))
            return f"state of the model, which is kept in host memory{why}"
        inside = reached(self._model.subgraphs, bodies)
        pieces = [
            p
            for n, program in self._shared.programs.items()
            if n in inside
            for p in program.pieces()
        ]
        for step in self._program.steps():
            if isinstance(step, Loop) and step.index == operator.index:
                pieces += step.pieces()
        reports = [session.report for session in _opened(pieces)]
        done = sum(r.delegated_nodes for r in reports)
        total = sum(r.total_nodes for r in reports)
        which = ", ".join(map(str, sorted(set(bodies))))
        many = "s" if len(set(bodies)) > 1 else ""
        is_once = operator.name == CALL_ONCE
        opening = "the host runs it once" if is_once else "the host decides what runs"
        if total:
            return (
                f"{opening}; of subgraph{many} {which}, {done} of {total} compiled operators run "
                "on the device"
            )
        operators = [o for n in inside for o in self._model.subgraphs[n].operators]
        if all(run_by_host(o) for o in operators):
            names = ", ".join(sorted({o.name for o in operators})) or "none"
            return f"{opening}; subgraph{many} {which} has operators of the host only ({names})"
        return f"{opening}; of subgraph{many} {which}, no operator was compiled so far"


def _opened(pieces: list[Piece]) -> list[Session]:
    return [p.session for p in pieces if p.session is not None]


def _quietly(text: str) -> None:
    """Shapes in the file are not what operators make, where they come when the model runs."""
