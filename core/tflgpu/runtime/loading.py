"""A compiled graph is loaded: a recording for each part, and a session that runs them in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs

from tflgpu.blame import attempt
from tflgpu.compiler.compile import Compiled
from tflgpu.compiler.partition import Part
from tflgpu.compiler.references import reference_support
from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.checked import close_all
from tflgpu.contract.device import Device, NodeDevice, NodeRun, Recording
from tflgpu.errors import DeviceError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.plugins import Registry
from tflgpu.runtime.reference import ReferenceRecording
from tflgpu.runtime.session import Session, Step, make_variables

_LOG = logging.getLogger("tflgpu")


@attrs.frozen
class Loader:
    """Loads parts on a device, and those of the CPU beside it.

    Attributes:
        device: An opened device.
        known: Where ops come from, and who wants to see plans.
        guard_bands: As `Device.load`.
        may_fall_back: Whether a part that the device cannot load runs on the CPU instead.
    """

    device: Device | NodeDevice
    known: Registry
    guard_bands: bool
    may_fall_back: bool

    def open(self, compiled: Compiled, report: Callable[[Compiled], DelegationReport]) -> Session:
        """Load all parts. ``report`` is asked last, since a part may have gone to the CPU.

        Raises:
            UnsupportedError: an operator that neither the device nor the CPU can run.
            DeviceError: the device could not load a part, and it may not fall back.
            Whatever ``report`` raises; what was loaded is closed then.
        """
        variables = make_variables(compiled.graph)
        steps: list[Step] = []
        try:
            for index in range(len(compiled.parts)):
                try:
                    recording = self._record(compiled.parts[index], variables)
                except DeviceError as error:
                    if not self.may_fall_back:
                        raise
                    compiled = compiled.on_cpu(index, self._not_loaded(error))
                    recording = self._record(compiled.parts[index], variables)
                part = compiled.parts[index]
                steps.append(Step(recording, part.inputs, part.outputs, part.label))
            return Session(compiled.graph, steps, report(compiled), variables)
        except BaseException:
            attempt(close_all, [step.recording for step in steps])
            raise

    def _record(self, part: Part, variables: dict[int, Array]) -> Recording:
        run = NodeRun(part.nodes, part.inputs, part.outputs, self.known.ops(), variables)
        if not part.delegated:
            self._check_cpu(part.nodes)
            return ReferenceRecording(run)
        if isinstance(self.device, NodeDevice):
            return self.device.load_nodes(run)
        assert part.plan is not None
        self.known.plan_ready(self.device.info.backend, part.plan)
        return self.device.load(part.plan, guard_bands=self.guard_bands)

    def _not_loaded(self, error: DeviceError) -> str:
        info = self.device.info
        where = f"{info.backend} device {info.index} ({info.name})"
        _LOG.warning("tflgpu: a part of the model runs on the CPU; %s: %s", where, error)
        # Compilers are told to say everything; a line of it is enough for every operator.
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{where} could not load it: {said}"

    def _check_cpu(self, nodes: Sequence[Node]) -> None:
        ops = self.known.ops()
        refused = [(n, no.reason) for n in nodes if (no := reference_support(n, ops))]
        if refused:
            listed = "; ".join(f"{n.label}: {reason}" for n, reason in refused)
            raise UnsupportedError(
                f"{len(refused)} operators run neither on the device nor on the CPU: {listed}"
            )
