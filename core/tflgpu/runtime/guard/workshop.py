"""The device, the CPU and the compiler that a guard uses besides its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

import attrs

from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import AccuracyCheck
from tflgpu.compiler.target import Target
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.ir.graph import Graph
from tflgpu.ops.base import OpDef
from tflgpu.passes.float_view import float_view
from tflgpu.runtime.cpu_session import open_as_it_is
from tflgpu.runtime.loading import Loader
from tflgpu.runtime.session import Session


@attrs.frozen(eq=False)
class Workshop:
    """Opens sessions for a guard.

    Attributes:
        graph: As the host gave it.
        target: What it was compiled for.
        loader: What loaded it.
        compile: As `tflgpu.compiler.compile.compile`.
        report: The report of what was compiled.
        finished: Told what was found when a session needs no watching any more.
        may_use_cpu: Whether the whole may run on the CPU.
    """

    graph: Graph
    target: Target
    loader: Loader
    compile: Callable[[Graph, Target], Compiled]
    report: Callable[[Compiled], DelegationReport]
    finished: Callable[[AccuracyCheck], None]
    may_use_cpu: bool

    @property
    def ops(self) -> Mapping[str, OpDef]:
        """Op definitions by name."""
        return self.target.ops

    @property
    def side(self) -> CpuSide:
        """The CPU side of the guard."""
        return self.loader.cpu

    def reference(self) -> Session:
        """The whole graph on the CPU, without graph passes; quantized operators as the target
        computes them, since other kernels may round them another way.

        Raises:
            UnsupportedError, DeviceError: the CPU cannot run it.
        """
        wanted = self.target.in_integers if self.target.wants_integers else None
        view = float_view(
            self.graph, self.ops, in_integers=wanted, rounds_hybrid=self.target.rounds_hybrid
        )
        return open_as_it_is(view.graph, self.ops, side=self.side)

    def open(self, target: Target) -> Session:
        """The graph for another target.

        Raises:
            TflgpuError: as `Loader.open`.
        """
        return self.loader.open(self.compile(self.graph, target), self.report)

    def on_cpu(self, graph: Graph, *, preserve_all: bool = False) -> closing[Session]:
        """A compiled graph on the CPU, closed at the end.

        Raises:
            UnsupportedError, DeviceError: the CPU cannot run it.
        """
        return closing(open_as_it_is(graph, self.ops, preserve_all=preserve_all, side=self.side))

    def on_device(self, compiled: Compiled) -> closing[Session]:
        """A compiled graph on the device, closed at the end; nothing of it falls back.

        Raises:
            DeviceError: the device cannot load it.
        """
        loader = attrs.evolve(self.loader, may_fall_back=False)
        return closing(loader.open(compiled, lambda compiled: DelegationReport(0, 0)))
