"""A device and what it makes of graphs: the middle of a delegate.

graph -> compiled parts (`compiler`) -> session (`loading`)

Two kinds of interpreter are served: tflgpu's own, which hands over a whole graph (`open_session`),
and TensorFlow Lite's, which is asked what it has (`tflgpu.hosts`).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs

from tflgpu.compat.judge import effective_caps
from tflgpu.compiler.accuracy import AccuracyCheck
from tflgpu.compiler.compile import Compiled, declined
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.partition import Declined, PartitionBy
from tflgpu.compiler.report import DelegationReport, insist, tell
from tflgpu.compiler.report_of import on_device, placed, report_of
from tflgpu.compiler.target import Target
from tflgpu.compiler.times import TimeModel
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.contract.forks import Holder, immortal
from tflgpu.contract.progress import Progress
from tflgpu.devices.choose import open_best
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.honoured import objections
from tflgpu.devices.paying import partition_by
from tflgpu.devices.renewal import Renewal
from tflgpu.devices.targets import node_choice, precision_note, precision_on, target_on
from tflgpu.errors import OptionError, SavedModelError, StateError, UnsupportedError
from tflgpu.guard.guard import guard_session
from tflgpu.guard.workshop import Workshop
from tflgpu.ir.graph import Graph
from tflgpu.ir.rewrite import with_all_results
from tflgpu.lowering.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.reason import ReasonCode
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.options import DelegateOptions, InferencePreference
from tflgpu.plugins import Registry, registry
from tflgpu.runtime.cpu_session import open_cpu_session
from tflgpu.runtime.loading import Loader, Opened
from tflgpu.runtime.running import Running
from tflgpu.runtime.session import Session
from tflgpu.runtime.timing import time_model
from tflgpu.runtime.trials import faster, noted
from tflgpu.saved import keeping
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

_LOG = logging.getLogger("tflgpu")
_MOST_CHECKS = 32


class Engine(Holder):
    """The device that options ask for, opened, and the CPU beside it.

    Attributes:
        options: As the user gave them.
        choice: Which device, and why.
        partitioning: What goes to it of all that it can run, and why that.

    Raises:
        DeviceError: the backend or device asked for is not there or cannot be opened.
        OptionError: the device cannot do what was asked for.
    """

    def __init__(
        self,
        options: DelegateOptions,
        *,
        is_default: bool = False,
        kept: keeping.Keeping = keeping.Keeping(),  # noqa: B008  (frozen)
        progress: Progress | None = None,
    ) -> None:
        """Open it.

        Args:
            options: Which device, and how it is used.
            is_default: Nobody asked for a delegate. Only a GPU is taken then, or what the
                environment names, and what fails on it may always run on the CPU.
            kept: Where compiled graphs come from; a folder may also be named by the options.
            progress: Told how many of a part's kernels are ready, and of how many.
        """
        self._progress = progress
        self.options = options
        self._is_default = is_default
        self._kept = kept.asked(options)
        self._registry: Registry = registry()
        self._closed = False
        self._broken_rules: dict[tuple[str, str, str], str] = {}
        self._cpu = CpuSide(self._registry, self.options)
        self._accuracy: deque[AccuracyCheck] = deque(maxlen=_MOST_CHECKS)
        self._times: TimeModel | None = None  # measured when it is first needed
        self._renewal = Renewal()
        self._device: Device | NodeDevice | None = None
        self.belongs_to_process()
        self._open()
        if self._device is None and not is_default:
            for reason in self.choice.reasons:
                _LOG.warning("tflgpu: %s", reason)

    @property
    def device(self) -> Device | NodeDevice | None:
        """The opened device, None where everything runs on the CPU."""
        return self._device

    @property
    def caps(self) -> DeviceCaps:
        """What is used of the device: its capabilities, less what the device database knows to
        be broken."""
        if self._device is None:
            return DeviceCaps()
        return effective_caps(self._device.caps, self.choice.judgement)

    @property
    def precision(self) -> Precision:
        """The precision in use: the one asked for, or the next that the device has."""
        if self._device is None:
            return Precision.F32
        return precision_on(self.caps, self.options.wanted_precision)

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
    ) -> Session:
        """Prepare a graph for running; the graph itself is not changed.

        Args:
            graph: As the file has it.
            preserve_all: Every tensor of the file is there after a run: each operator leaves its
                results in host memory, so that nothing is merged with anything.
            fuse: Whether operators may be merged: several in one kernel, or in one another.
            cpu: Runs what the device does not, in the place of what the options ask for.

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
                "there is no device and allow_fallback is off: " + "; ".join(self.choice.reasons)
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
        session = self._load(wanted, compiled, target, loader, report)
        tell(session.report)
        return session

    def renew(self, session: Session) -> None:
        """Open the device anew, since it is lost; nothing where that was done since ``session`` was
        opened. Sessions that are opened from now on are on the new one.

        Raises:
            DeviceError: it cannot be opened.
            OptionError: what is there now cannot do what was asked for.
            StateError: closed, or opened before a fork.
        """
        self._check_open()
        if self._device is not None:
            self._renewal.replace(self._device, session, self._open)

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
        self._check_open()
        if self._device is None or isinstance(self._device, NodeDevice):
            raise SavedModelError(
                "only what is compiled for a device that runs kernels can be saved; `tflgpu devices` "
                "lists what there is"
            )
        file = read_model(model if isinstance(model, bytes) else os.fspath(model))
        graph = build_graph(file, 0, self.ops, foreign=self._cpu.infer)
        refuse_unknown(graph, "neither the device nor the CPU can run")
        target = self._target()
        compiled = self._compile(graph, target)
        report, plugins = self._report(graph, compiled), self._registry.plugins
        keeping.write(Path(path), compiled, graph, target, self._device, plugins)
        return report

    # What hosts ask: see `tflgpu.hosts.subsets.Engine`

    @property
    def ops(self) -> Mapping[str, OpDef]:
        """Op definitions by name, those of plugins among them."""
        return self._registry.ops()

    def declined(self, graph: Graph) -> Sequence[Declined]:
        """The operators that the device refuses, as far as that shows before kernels are made.

        Raises:
            StateError: as `_get_native_delegate_pointer`.
            PluginError, GraphError: as `open_session`.
        """
        self._check_open()
        if self._device is None:
            why = "; ".join(self.choice.reasons)
            return tuple(
                Declined(n.label, n.op, tuple(n.origins), why, ReasonCode.NO_DEVICE) for n in graph
            )
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
        loader = self._loader(self._cpu, may_fall_back=False)
        session = self._load(
            graph, compiled, target, loader, lambda whole: self.signed(report_of(graph, whole))
        )
        gain, seconds = (sum(getattr(p, n) for p in compiled.parts) for n in ("gain", "seconds"))
        return Opened(session, gain, seconds, sum(plan.device_bytes for plan in compiled.plans))

    def signed(self, report: DelegationReport) -> DelegationReport:
        """A report with this delegate's device, precision and reasons for them in it."""
        if self._device is None:
            return attrs.evolve(report, choice=self.choice.reasons)
        by, why = self.partitioning
        report = attrs.evolve(report, partitioning=by.value, partitioning_reason=why)
        info = self._device.info
        choice = self.choice.reasons + precision_note(self.options.wanted_precision, self.precision)
        return on_device(report, info.backend, info.name, self.precision.value, choice)

    def close(self) -> None:
        """Release the device; twice is harmless. Close the interpreters that use it first."""
        self._closed = True
        self._cpu.close()
        if self.inherited:
            return
        self._renewal.close()
        if self._device is not None:
            self._device.close()

    def after_fork(self) -> None:
        """A child may not touch its device."""
        if self._device is not None:
            super().after_fork()
            self._renewal.after_fork()
            immortal(self._device)

    # Inside

    def _check_open(self) -> None:
        self.check_inherited("this delegate's device")
        if self._closed:
            raise StateError("this delegate is closed")

    def _open(self) -> None:
        """Open the device, and see whether it can do what the options ask for; close it if not."""
        self.choice, self._device = open_best(
            self._registry, self.options, only_gpus=self._is_default
        )
        self.partitioning = partition_by(self.options, self.choice)
        self._times = None
        if self._device is None:
            return
        try:
            notes = objections(self.options, self._device, explicit=self.choice.explicit)
        except OptionError:
            self.close()
            raise
        for note in notes:
            _LOG.warning("tflgpu: %s", note)
        self.choice = attrs.evolve(self.choice, reasons=(*self.choice.reasons, *notes))

    def _warn_of_names(self, graph: Graph) -> None:
        for sentence in node_choice(self.options).unmatched(graph):
            _LOG.warning("tflgpu: %s", sentence)

    def _loader(self, cpu: CpuSide, may_fall_back: bool) -> Loader:
        assert self._device is not None
        bands, running = self.options.guard_bands, Running.of(self.options)
        return Loader(
            self._device, self._registry, cpu, bands, may_fall_back, running, self._progress
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
        users = self._renewal.users()
        session = self._opened(graph, compiled, target, loader, report)
        users.add(session)
        options = self.options
        if options.accuracy_guard is not None:
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
        if self._kept.saved is not None:
            return noted(session, "inference_preference: a saved model is used as it is")
        try:
            other = self._compile(graph, target.joining())
            load = partial(loader.open, report=report)
            return faster(session, compiled, other, load, self.options.memory_limit)
        except BaseException:
            session.close()
            raise

    def _target(self) -> Target:
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
        return self._noted(compile_graph(graph, target))

    def _noted(self, compiled: Compiled) -> Compiled:
        for rule, reason in compiled.broken_rules.items():
            _LOG.warning("tflgpu: a kernel rule is left out: %s", reason)
            self._broken_rules[rule] = reason
        return compiled

    @property
    def _may_fall_back(self) -> bool:
        """Whether what fails on the device may run elsewhere: nobody asked for just this device."""
        return self.options.allow_fallback and (self._is_default or not self.choice.explicit)

    @property
    def _cpu_numerics(self) -> Numerics:
        # Only on a device are integers chosen to save memory: here they would be NumPy's.
        return self.options.quantized_numerics or Numerics.FLOAT

    def _all_on_cpu(self, graph: Graph, preserve_all: bool, cpu: CpuSide) -> Session:
        ops = self._registry.ops()
        session = open_cpu_session(
            graph, ops, preserve_all=preserve_all, side=cpu, numerics=self._cpu_numerics,
            reason="; ".join(self.choice.reasons), code=ReasonCode.NO_DEVICE,
        )  # fmt: skip
        session.report = attrs.evolve(session.report, choice=self.choice.reasons)
        return session

    def _none_delegated(
        self, graph: Graph, compiled: Compiled, cpu: CpuSide, preserve_all: bool
    ) -> Session:
        """The CPU runs all of it, as the file has it and not as the device would have had it."""
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
