"""An engine that starts models from what is kept of their files, without reading them.

A graph and its digest take longer to make than a driver takes to get ready with everything at hand. So
what a model's file becomes is kept under a digest of its bytes, and the graph is built only where there
is nothing yet, or where somebody asks for what only the graph has.
"""

from __future__ import annotations

from functools import partial

from tflgpu.blame import in_a_line, of_signal
from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.parts import Part
from tflgpu.compiler.report import DelegationReport, insist, tell
from tflgpu.compiler.report_of import report_of
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.wanted import node_choice
from tflgpu.engine import Engine
from tflgpu.errors import SavedModelError
from tflgpu.ops.unknown import UnknownOp
from tflgpu.options import InferencePreference
from tflgpu.runtime.session import Session
from tflgpu.saved.asked import facts_of_options, facts_of_registry
from tflgpu.saved.keeping import device_facts
from tflgpu.saved.origin import Facts, Origin
from tflgpu.saved.start import Start, start_of


class _NotPlainError(Exception):
    """A graph that takes more than its file to tell what becomes of it."""


class StartingEngine(Engine):
    """An `Engine` that may also be given an `Origin` in the place of a graph."""

    def knows(self, origin: Origin) -> bool:
        """Whether something is kept of a model's file, so that it was read before without fault."""
        return self._device is not None and self._kept.knows(origin)

    def open_origin(
        self, origin: Origin, *, cpu: CpuSide | None = None
    ) -> tuple[Session, Start] | None:
        """As `open_session`, from what is kept of a model's file; kept now where it was not yet. None
        where nothing can be kept of it: then there must be a graph.

        Raises:
            DeviceError, PluginError, GraphError, UnsupportedError: as `open_session`.
            ModelError: as `Origin.graph`, where that is built; as `Origin.check`.
        """
        self._check_open()
        device = self._device
        if device is None or isinstance(device, NodeDevice) or not self._keeps:
            return None
        try:
            facts = self._facts(device)
        except SavedModelError:
            return None  # which is said where the graph is compiled
        origin.compile = self._compiled_again
        try:
            start = self._kept.start(origin, facts, device, partial(self._start, origin))
        except _NotPlainError:
            return None
        side = cpu or self._cpu
        try:
            return self._opened_start(origin, start, side), start
        except Exception as error:
            # Of what was compiled just now it is as it would be without a file; what was read may be
            # what nobody would have compiled.
            if vars(origin).get("compiled") is start.compiled or of_signal(error):
                raise
            said = f"{type(error).__name__}: {in_a_line(error)}"
        # What is compiled now may fail alike, for too little memory say: then the file stays.
        fresh = self._start(origin)
        session = self._opened_start(origin, fresh, side)
        return session, self._kept.start(origin, facts, device, lambda: fresh, said)

    # Inside

    def _opened_start(self, origin: Origin, start: Start, side: CpuSide) -> Session:
        if not start.compiled.delegated:
            return self._none_delegated(origin.graph, start.compiled, side, False)
        users = self._renewal.users()
        report = partial(self._report_of_start, origin, start)
        loader = self._loader(side, self._may_fall_back)
        session = loader.open(start.compiled, report, partial(_whole, origin, start))
        users.add(session)
        tell(session.report)
        return session

    @property
    def _keeps(self) -> bool:
        """Whether what becomes of a file hangs on nothing but what `_facts` say. A guard and a trial
        compile besides; and a rule that broke is left out from then on."""
        options = self.options
        return (
            self._kept.folder is not None
            and self._kept.saved is None
            and options.accuracy_guard is None
            and options.inference_preference is not InferencePreference.SUSTAINED_SPEED
            and not self._broken_rules
        )

    def _facts(self, device: Device) -> Facts:
        known = self._registry
        return (
            *device_facts(device, known.plugins),
            ("usable", repr(self.caps)),
            ("alignment", str(device.alignment)),
            ("computed in", self.precision.name),
            ("partitioning", self.partitioning[0].name),
            ("spares broken rules", str(self._may_fall_back)),
            *facts_of_options(self.options),
            *facts_of_registry(known, device.info.backend),
        )

    def _start(self, origin: Origin) -> Start:
        graph = origin.graph
        # Who else may have kernels for them, and what runs without them, is not in the key.
        if any(isinstance(node.attrs, UnknownOp) for node in graph):
            raise _NotPlainError
        compiled = self._compile(graph, self._target())
        origin.check()
        origin.compiled = compiled
        unmatched = (f"tflgpu: {each}" for each in node_choice(self.options).unmatched(graph))
        report = report_of(graph, compiled)
        return start_of(graph, compiled, report, (*origin.warnings, *unmatched))

    def _compiled_again(self, origin: Origin) -> Compiled:
        return self._compile(origin.graph, self._target())

    def _report_of_start(
        self, origin: Origin, start: Start, compiled: Compiled
    ) -> DelegationReport:
        if compiled is not start.compiled:  # a part could not be loaded
            return self._report(origin.graph, compiled)
        assert self._device is not None
        if not self.options.allow_fallback:
            insist(start.report, self._device.info.name)
        return self.signed(start.report)


def _whole(origin: Origin, start: Start) -> Compiled:
    """The compiled graph with all of its nodes, where a start was kept without.

    Raises:
        SavedModelError: by the times that were measured since it has other parts.
    """
    found = origin.compiled
    if [_outline(p) for p in found.parts] != [_outline(p) for p in start.compiled.parts]:
        raise SavedModelError("the parts of this model have changed since it was saved")
    return found


def _outline(part: Part) -> tuple[object, ...]:
    edges = ([value.id for value in values] for values in (part.inputs, part.outputs))
    return (part.delegated, part.count, *edges)
