"""A graph that a device runs several times in one run, each time on the results of the time
before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.repeat import as_state, carried, repeated
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.contract.device import NodeDevice
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import DeviceError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.compile_or_load import compile_or_load
from tflgpu.runtime.loading import Loader
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.opening import insisted, sees_each_run
from tflgpu.runtime.provider import Provider
from tflgpu.runtime.session import Session
from tflgpu.values import frozen


@frozen(eq=False)
class Repeating:
    """One, compiled.

    Attributes:
        graph: As the file has it.
        compiled: Wholly on the device, as one part.
        carries: As `tflgpu.compiler.repeat.carried` gives it.
        opened: The device.
        cpu: As `tflgpu.runtime.opening.open_graph`.
    """

    graph: Graph
    compiled: Compiled
    carries: Mapping[int, int]
    opened: OpenedDevice
    cpu: CpuSide

    @property
    def dispatches(self) -> int:
        """Kernels that one time launches."""
        return self.compiled.parts[0].dispatches

    def open(self, count: int) -> Session | None:
        """A session that runs it ``count`` times in a run; None where the device has no room for
        it.

        Raises:
            PluginError: as `tflgpu.runtime.opening.open_graph`.
        """
        (part,) = self.compiled.parts
        assert part.plan is not None
        plan = repeated(part.plan, self.carries, count)
        again = attrs.evolve(self.compiled, parts=(attrs.evolve(part, plan=plan),))
        try:
            return self.opened.used(partial(self._loader.open, again, self._report))
        except DeviceError:
            return None  # a session of one round says why

    def open_carrying(self) -> Session | None:
        """A session that runs it once in a run, and has what is carried in its variables, by the
        inputs that it is; None where the device has no room for it, or one result is carried twice.

        Raises:
            PluginError: as `open`.
        """
        (part,) = self.compiled.parts
        found = as_state(part, self.carries)
        if found is None or not self.carries:
            return None
        opening = partial(self._loader.open_carrying, self.compiled, *found, self._report)
        try:
            return self.opened.used(opening)
        except DeviceError:
            return None  # as above

    @property
    def _loader(self) -> Loader:
        # Never by the CPU: that would run the graph, and once.
        return attrs.evolve(self.opened.loader(self.cpu), may_fall_back=False, whole=True)

    def _report(self, compiled: Compiled) -> DelegationReport:
        return insisted(report_of(self.graph, compiled), self.opened)


def repeating(
    graph: Graph, pairs: Sequence[tuple[int, int]], provider: Provider, cpu: CpuSide
) -> Repeating | None:
    """A graph, to be run several times over in one run; None where there is no device for that,
    where it takes more than one part on the device, or where an option has to see each run by
    itself.

    Args:
        graph: As the file has it.
        pairs: As `tflgpu.compiler.repeat.carried` takes them.
        provider: Where it runs. What fails on one that `Provider.gives_way` may fail again by
            itself, and then the CPU takes over.
        cpu: As `tflgpu.runtime.opening.open_graph`.

    Raises:
        PluginError, GraphError: as `tflgpu.runtime.opening.open_graph`.
    """
    opened = provider.opened
    if opened is None:
        return None
    try:
        opened.check_open()
        if opened.device is None or isinstance(opened.device, NodeDevice):
            return None
        if sees_each_run(provider):
            return None
        compiled = compile_or_load(graph, opened.target(), provider)
    except Exception:
        if not provider.gives_way:
            raise
        return None
    if compiled.refusals or len(compiled.parts) != 1 or compiled.parts[0].plan is None:
        return None
    carries = carried(compiled.parts[0], pairs)
    if isinstance(carries, Unsupported):
        return None
    return Repeating(graph, compiled, carries, opened, cpu)
