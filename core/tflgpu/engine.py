"""What a device makes of graphs: the middle of a delegate.

graph -> compiled parts (`compiler`) -> session (`loading`)

What compiles a graph, tries out or watches is imported where it is used: who starts a kept model, as most
do, needs none of it, and importing it takes longer than the start.

Two kinds of interpreter are served: tflgpu's own, which hands over a whole graph (`open_session`),
and TensorFlow Lite's, which is asked what it has (`tflgpu.hosts`).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tflgpu.compiler.accuracy import AccuracyCheck
from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.keep import Pairs
from tflgpu.compiler.machines import TimeModel
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.compiler.parts import Declined, Part, all_declined
from tflgpu.compiler.repeat import carried
from tflgpu.compiler.report import DelegationReport, insist, tell
from tflgpu.compiler.report_of import placed, report_of
from tflgpu.contract.device import NodeDevice
from tflgpu.contract.progress import Progress
from tflgpu.devices.choose import ALL_ON_CPU
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.wanted import node_choice
from tflgpu.errors import (
    MemoryLimitError,
    SavedModelError,
    UnsupportedError,
)
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.rewrite import with_all_results
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.opened_device import OpenedDevice
from tflgpu.ops.unknown import for_the_host, refuse_unknown
from tflgpu.options import DelegateOptions, InferencePreference
from tflgpu.runtime.loading import Loader, Opened
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.running import Running
from tflgpu.runtime.session import Session
from tflgpu.saved.keeping import Keeping

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target

_LOG = logging.getLogger("tflgpu")
_MOST_CHECKS = 32


class Engine(OpenedDevice):
    """An `OpenedDevice` and what it makes of graphs."""

    def __init__(
        self,
        options: DelegateOptions,
        *,
        is_default: bool = False,
        kept: Keeping = Keeping(),  # noqa: B008  (frozen)
        progress: Progress | None = None,
    ) -> None:
        """As `OpenedDevice`; ``kept`` is where compiled graphs come from, and a folder may also be
        named by the options. ``progress`` is told how many of a part's kernels are ready, and of how
        many."""
        self._progress = progress
        self._kept = kept.asked(options)
        self._broken_rules: dict[tuple[str, str, str], str] = {}
        self._accuracy: deque[AccuracyCheck] = deque(maxlen=_MOST_CHECKS)
        self._times: TimeModel | None = None  # measured when it is first needed
        super().__init__(options, is_default=is_default)

    @property
    def accuracy_checks(self) -> tuple[AccuracyCheck, ...]:
        """What accuracy guards found, the latest last: one for each set of input shapes of each graph,
        when its runs are over. The last ones are kept."""
        return tuple(self._accuracy)

    def open_session(
        self,
        graph: Graph,
        *,
        preserve_all: bool = False,
        fuse: bool = True,
        cpu: CpuSide | None = None,
        keeping: Pairs = (),
    ) -> Session:
        """Prepare a graph for running; the graph itself is not changed.

        Args:
            graph: As the file has it.
            preserve_all: Every tensor of the file is there after a run: each operator leaves its
                results in host memory, so that nothing is merged with anything.
            fuse: Whether operators may be merged: several in one kernel, or in one another.
            cpu: Runs what the device does not, in the place of what the options ask for.
            keeping: Results that are inputs of the next run. What can stay on the device between runs
                is among the session's `kept`, and `not_kept` says why of the others.

        Raises:
            UnsupportedError: an operator that neither the device nor the CPU can run, or any
                refusal where ``allow_fallback`` is off.
            SavedModelError: a saved model was given, and it is not this one for this device; or
                there is no device.
            DeviceError: the device could not load a part, and was asked for or ``allow_fallback``
                is off. Otherwise that part runs on the CPU, which the report and a warning say.
            PluginError: a plugin's graph pass or op broke its contract; or its kernel rule did,
                under the same conditions. Otherwise other rules, or the CPU, take its place.
            GraphError: a plugin's graph pass left a broken graph.
        """
        self._check_open()
        if self._device is None and not self.options.allow_fallback:
            raise UnsupportedError(
                "there is no device and allow_fallback is off: "
                + "; ".join(self.choice.reasons).replace(ALL_ON_CPU, "")
            )
        self._kept.insist_on_device(self._device, "; ".join(self.choice.reasons))
        if self._device is None:
            return self._all_on_cpu(graph, preserve_all, cpu or self._cpu)
        refuse_unknown(graph, "neither the device nor the CPU can run")
        self._warn_of_names(graph)
        wanted = with_all_results(graph) if preserve_all else graph
        target = self._target() if fuse else self._target().unfused()
        compiled = self.compile(wanted) if fuse else self._kept_or_compiled(wanted, target)
        if not compiled.delegated:
            return self._none_delegated(graph, compiled, cpu or self._cpu, preserve_all)
        loader = self._loader(cpu or self._cpu, self._may_fall_back)
        report = partial(self._report, graph)
        why = self._sees_each_run() if keeping else ""
        if keeping and not why:
            session = self._used(lambda: loader.open(compiled, report, pairs=keeping))
        else:
            session = self._load(wanted, compiled, target, loader, report)
            session.not_kept = {given: why for _, given in keeping}
        tell(session.report)
        return session

    def repeating(
        self, graph: Graph, pairs: Sequence[tuple[int, int]], *, cpu: CpuSide | None = None
    ) -> Repeating | None:
        """A graph, to be run several times over in one run; None where it takes more than one part on
        the device, or an option has to see each run by itself.

        Args:
            graph: As the file has it.
            pairs: As `tflgpu.compiler.repeat.carried` takes them.
            cpu: As `open_session`.

        Raises:
            PluginError, GraphError: as `open_session`.
        """
        self._check_open()
        if self._device is None or isinstance(self._device, NodeDevice) or self._sees_each_run():
            return None
        compiled = self.compile(graph)
        if compiled.refusals or len(compiled.parts) != 1 or compiled.parts[0].plan is None:
            return None
        carries = carried(compiled.parts[0], pairs)
        if isinstance(carries, Unsupported):
            return None
        # Never by the CPU: that would run the graph, and once.
        loader = attrs.evolve(self._loader(cpu or self._cpu, may_fall_back=False), whole=True)

        report = partial(self._report, graph)

        def load(again: Compiled) -> Session:
            return self._used(lambda: loader.open(again, report))

        def carrying(whole: Compiled, part: Part, states: tuple[Value, ...]) -> Session:
            return self._used(lambda: loader.open_carrying(whole, part, states, report))

        return Repeating(compiled, carries, load, carrying)

    def compile(self, graph: Graph) -> Compiled:
        """What a graph becomes on this device, without loading it.

        Raises:
            PluginError, GraphError: as `open_session`.
        """
        return self._kept_or_compiled(graph, self._target())

    def save(
        self, model: str | os.PathLike[str] | bytes, path: str | os.PathLike[str]
    ) -> DelegationReport:
        """Compile a model, by its file or bytes, and write what it becomes to a file, for ``saved``:
        its main subgraph, at the shapes that the model says. Gives where its operators will run.

        Raises:
            SavedModelError: there is no device that runs kernels, something in it cannot be saved,
                or the file cannot be written.
            ModelError: no such file, or no well-formed model.
            UnsupportedError, PluginError, GraphError: as `open_session`.
        """
        from tflgpu.saved import keeping
        from tflgpu.tflite.build import build_graph
        from tflgpu.tflite.read import read_model

        self._check_open()
        if self._device is None or isinstance(self._device, NodeDevice):
            info = None if self._device is None else self._device.info
            here = (
                f"{info.backend} device {info.index} ({info.name}) has no kernels"
                if info
                else "there is no device"
            )
            raise SavedModelError(
                f"{here}, and only what is compiled for a device that runs "
                "kernels can be saved; `tflgpu devices` lists what there is"
            )
        file = read_model(model if isinstance(model, bytes) else os.fspath(model))
        graph = build_graph(file, 0, self.ops, foreign=self._cpu.infer)
        pieces = for_the_host(graph, has_device=True)
        if pieces:
            named = ", ".join(dict.fromkeys(n.label for n, _ in pieces[:5]))
            more = f" and {len(pieces) - 5} others" if len(pieces) > 5 else ""
            raise SavedModelError(
                f"a saved model is of one graph, and this model is run by the piece, since the host "
                f"has a part in it: {named}{more} (control flow, variables, texts, or shapes that only "
                "a run tells). Run it without a file: what its pieces become is kept in the cache folder"
            )
        refuse_unknown(graph, "neither the device nor the CPU can run")
        target = self._target()
        compiled = self._compile(graph, target)
        report, plugins = self._report(graph, compiled), self._registry.plugins
        keeping.write(Path(path), compiled, graph, target, self._device, plugins)
        return report

    # What hosts ask: see `tflgpu.hosts.subsets.Engine`

    def declined(self, graph: Graph) -> Sequence[Declined]:
        """The operators that the device refuses, as far as that shows before kernels are made.

        Raises:
            StateError: as `_get_native_delegate_pointer`.
            PluginError, GraphError: as `open_session`.
        """
        from tflgpu.compiler.compile import declined

        self._check_open()
        if self._device is None:
            return all_declined(graph, "; ".join(self.choice.reasons), ReasonCode.NO_DEVICE)
        self._warn_of_names(graph)
        return declined(graph, self._target())

    def open_whole(self, graph: Graph) -> Opened | Sequence[Declined]:
        """A graph wholly on the device, or the operators that are in the way.

        Raises:
            StateError, DeviceError, PluginError, GraphError: as `open_session`.
        """
        self._check_open()
        if self._device is None:
            return self.declined(graph)
        target = self._target().for_all()
        compiled = self._kept_or_compiled(graph, target)
        if compiled.refusals:
            return compiled.refusals
        loader = attrs.evolve(self._loader(self._cpu, may_fall_back=False), whole=True)
        try:
            session = self._load(
                graph, compiled, target, loader, lambda whole: self.signed(report_of(graph, whole))
            )
        except MemoryLimitError as error:
            return all_declined(graph, str(error), ReasonCode.DEVICE_LIMIT)
        gain, seconds = (sum(getattr(p, n) for p in compiled.parts) for n in ("gain", "seconds"))
        return Opened(session, gain, seconds, sum(plan.device_bytes for plan in compiled.plans))

    # Inside

    def _open(self) -> None:
        self._times = None
        super()._open()

    def _sees_each_run(self) -> str:
        """The option for which runs are as they would be by themselves; "" where there is none."""
        options = self.options
        if self._kept.saved is not None:
            return "a saved model is used as it is (saved)"
        if options.accuracy_guard is not None:
            return "runs are made a second time with the same inputs (accuracy_guard)"
        if options.inference_preference is InferencePreference.SUSTAINED_SPEED:
            return "two forms of the model are tried (inference_preference)"
        return ""

    def _used(self, opened: Callable[[], Session]) -> Session:
        """A session on the device as it is now."""
        users = self._renewal.users()
        session = opened()
        users.add(session)
        return session

    def _warn_of_names(self, graph: Graph) -> None:
        for sentence in node_choice(self.options).unmatched(graph):
            _LOG.warning("tflgpu: %s", sentence)

    def _loader(self, cpu: CpuSide, may_fall_back: bool) -> Loader:
        assert self._device is not None
        bands, running = self.options.guard_bands, Running.of(self.options)
        return Loader(
            self._device,
            self._registry,
            cpu,
            bands,
            may_fall_back,
            running,
            progress=self._progress,
        )

    def _load(
        self,
        graph: Graph,
        compiled: Compiled,
        target: Target,
        loader: Loader,
        report: Callable[[Compiled], DelegationReport],
    ) -> Session:
        """A session; with SUSTAINED_SPEED the faster of two, and watched where that is wanted."""
        session = self._used(lambda: self._opened(graph, compiled, target, loader, report))
        options = self.options
        if options.accuracy_guard is not None:
            from tflgpu.guard.guard import guard_session
            from tflgpu.guard.workshop import Workshop

            shop = Workshop(
                graph, target, loader, self._compile, report, self._accuracy.append,
                options.allow_fallback,
            )  # fmt: skip
            guard_session(session, shop, options.accuracy_guard)
        return session

    def _opened(
        self,
        graph: Graph,
        compiled: Compiled,
        target: Target,
        loader: Loader,
        report: Callable[[Compiled], DelegationReport],
    ) -> Session:
        session = loader.open(compiled, report)
        if self.options.inference_preference is not InferencePreference.SUSTAINED_SPEED:
            return session
        from tflgpu.runtime.trials import faster, noted

        if self._kept.saved is not None:
            return noted(session, "inference_preference: a saved model is used as it is")
        try:
            other = self._compile(graph, target.joining())
            load = partial(attrs.evolve(loader, whole=True).open, report=report)
            return faster(session, compiled, other, load, self.options.memory_limit)
        except BaseException:
            session.close()
            raise

    def _target(self) -> Target:
        from tflgpu.devices.targets import target_on
        from tflgpu.runtime.timing import time_model

        assert self._device is not None
        target = target_on(
            self._device, self.caps, self._registry, self.options,
            broken_rules=self._broken_rules, spares_broken_rules=self._may_fall_back,
        )  # fmt: skip
        if self.partitioning[0] is PartitionBy.ALL:
            return target
        if self._times is None:
            self._times = time_model(self._device, target, self._cpu, self._registry)
        return attrs.evolve(target, by_gain=True, times=self._times)

    def _kept_or_compiled(self, graph: Graph, target: Target) -> Compiled:
        assert self._device is not None
        return self._noted(self._kept.compiled(graph, target, self._device, self._registry.plugins))

    def _compile(self, graph: Graph, target: Target) -> Compiled:
        from tflgpu.compiler.compile import compile as compile_graph

        return self._noted(compile_graph(graph, target))

    def _noted(self, compiled: Compiled) -> Compiled:
        for rule, reason in compiled.broken_rules.items():
            _LOG.warning("tflgpu: a kernel rule is left out: %s", reason)
            self._broken_rules[rule] = reason
        return compiled

    @property
    def _cpu_numerics(self) -> Numerics:
        # Only on a device are integers chosen to save memory: here they would be NumPy's.
        return self.options.quantized_numerics or Numerics.FLOAT

    def _all_on_cpu(self, graph: Graph, preserve_all: bool, cpu: CpuSide) -> Session:
        from tflgpu.runtime.cpu_session import open_cpu_session

        session = open_cpu_session(
            graph, self._registry.ops(), preserve_all=preserve_all, side=cpu,
            numerics=self._cpu_numerics, reason="; ".join(self.choice.reasons),
            code=ReasonCode.NO_DEVICE,
        )  # fmt: skip
        session.report = attrs.evolve(session.report, choice=self.choice.reasons)
        return session

    def _none_delegated(
        self, graph: Graph, compiled: Compiled, cpu: CpuSide, preserve_all: bool
    ) -> Session:
        """The CPU runs all of it, as the file has it and not as the device would have had it."""
        from tflgpu.runtime.cpu_session import open_cpu_session

        report = self._report(graph, compiled)
        session = open_cpu_session(
            graph, self._registry.ops(), preserve_all=preserve_all, side=cpu,
            numerics=self._cpu_numerics,
        )  # fmt: skip
        ran = session.report
        session.report = attrs.evolve(
            placed(report, {r.node: r.runs_on for r in ran.refusals}),
            integers=ran.integers, in_floats=ran.in_floats, seconds=report.cpu_seconds,
        )  # fmt: skip
        tell(session.report)
        return session

    def _report(self, graph: Graph, compiled: Compiled) -> DelegationReport:
        assert self._device is not None
        report = report_of(graph, compiled)
        if not self.options.allow_fallback:
            insist(report, self._device.info.name)
        return self.signed(report)
