"""`GpuDelegate`: the one place that orders the stages, from a graph to a running session.

choice of a device -> graph -> compiled parts (`tflgpu.compiler`) -> recordings -> session
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import attrs

from tflgpu.blame import attempt
from tflgpu.choose import open_best
from tflgpu.compat.judge import effective_caps
from tflgpu.compiler.compile import Compiled, CompiledPart
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import report_of
from tflgpu.compiler.target import Target
from tflgpu.errors import DeviceError, OptionError, StateError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.lowering import Precision
from tflgpu.kernel.rule import Site, Unsupported
from tflgpu.kernels.registry import without_rules
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.options import DelegateOptions
from tflgpu.passes.registry import default_passes
from tflgpu.plugins import Registry, registry
from tflgpu.runtime.checked import close_all
from tflgpu.runtime.forks import Holder, immortal
from tflgpu.runtime.protocols import Device, NodeDevice, NodeRun, Recording
from tflgpu.runtime.reference import ReferenceRecording, reference_support
from tflgpu.runtime.report import DelegationReport
from tflgpu.runtime.session import Session, Step, make_variables, open_cpu_session

_LOG = logging.getLogger("tflgpu")


class GpuDelegate(Holder):
    """Moves what it can of a model to a GPU; the rest runs on the CPU, with reasons.

        interpreter = tflgpu.Interpreter("model.tflite",
                                         experimental_delegates=[tflgpu.GpuDelegate()])

    Without arguments the best device there is is used. One delegate opens one device and may
    serve several interpreters.

    Raises:
        OptionError: an unknown option, a bad value, or a clash.
        DeviceError: the backend or device asked for is not there or cannot be opened.
    """

    def __init__(self, options: DelegateOptions | None = None, **kwargs: Any) -> None:
        self.options = _options(options, kwargs)
        self._registry: Registry = registry()
        self._closed = False
        self._broken_rules: dict[tuple[str, str, str], str] = {}
        self.choice, self._device = open_best(self._registry, self.options)
        self.belongs_to_process()
        if self._device is None:
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
        wanted = self.options.wanted_precision
        if self._device is None:
            return Precision.F32
        caps = self.caps
        if wanted is Precision.F16 and not caps.f16_arithmetic:
            wanted = Precision.F32_F16
        if wanted is Precision.F32_F16 and not caps.f16_storage:
            wanted = Precision.F32
        return wanted

    def open_session(self, graph: Graph, *, preserve_all: bool = False) -> Session:
        """Prepare a graph for running; the graph itself is not changed.

        With ``preserve_all`` nothing is delegated, since fused tensors would not exist.

        Raises:
            UnsupportedError: an operator that neither the device nor the CPU can run, or any
                refusal where ``allow_fallback`` is off.
            DeviceError: the device could not load a part, and was asked for or ``allow_fallback``
                is off. Otherwise that part runs on the CPU, which the report and a warning say.
            PluginError: a plugin's graph pass or op broke its contract; or its kernel rule did,
                under the same conditions. Otherwise other rules, or the CPU, take its place.
            GraphError: a plugin's graph pass left a broken graph.
        """
        self.check_inherited("this delegate's device")
        if self._closed:
            raise StateError("this delegate is closed")
        if self._device is None and not self.options.allow_fallback:
            raise UnsupportedError(
                "there is no device and allow_fallback is off: " + "; ".join(self.choice.reasons)
            )
        if preserve_all or self._device is None:
            return self._all_on_cpu(graph, preserve_all)
        refuse_unknown(graph, "neither the device nor the CPU can run")
        compiled = self.compile(graph)
        variables = make_variables(compiled.graph)
        steps: list[Step] = []
        try:
            for index in range(len(compiled.parts)):
                try:
                    recording = self._record(compiled.parts[index], variables)
                except DeviceError as error:
                    if not self._may_fall_back:
                        raise
                    compiled = compiled.on_cpu(index, self._not_loaded(error))
                    recording = self._record(compiled.parts[index], variables)
                part = compiled.parts[index]
                steps.append(Step(recording, part.inputs, part.outputs, part.label))
            report = self._report(graph, compiled)
            return Session(compiled.graph, steps, report, variables)
        except BaseException:
            attempt(close_all, [step.recording for step in steps])
            raise

    def compile(self, graph: Graph) -> Compiled:
        """What a graph becomes on this device, without loading it.

        Raises:
            PluginError, GraphError: as `open_session`.
        """
        compiled = compile_graph(graph, self._target())
        for rule, reason in compiled.broken_rules.items():
            _LOG.warning("tflgpu: a kernel rule is left out: %s", reason)
            self._broken_rules[rule] = reason
        return compiled

    def close(self) -> None:
        """Release the device; twice is harmless. Close the interpreters that use it first."""
        self._closed = True
        if self._device is not None and not self.inherited:
            self._device.close()

    def after_fork(self) -> None:
        """A child may not touch its device."""
        if self._device is not None:
            super().after_fork()
            immortal(self._device)

    def __enter__(self) -> GpuDelegate:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Stages

    @property
    def _may_fall_back(self) -> bool:
        """Whether what fails on the device may run elsewhere: nobody asked for just this device."""
        return self.options.allow_fallback and not self.choice.explicit

    def _target(self) -> Target:
        device, known, options = self._device, self._registry, self.options
        assert device is not None
        ops, site = known.ops(), Site(self.caps, self.precision)
        backend = device.info.backend
        runs_nodes = isinstance(device, NodeDevice)

        def objection(node: Node) -> Unsupported | None:
            if isinstance(device, NodeDevice):
                return device.supports(node, ops)
            return known.node_support(backend, node, site)

        return Target(
            ops=ops,
            passes=tuple(default_passes(known.passes())),
            site=site,
            alignment=1 if isinstance(device, NodeDevice) else device.alignment,
            rules=None if runs_nodes else without_rules(known.rules(backend), self._broken_rules),
            objection=objection,
            quantized_allowed=options.quantized_models_allowed,
            max_partitions=options.max_delegated_partitions,
            min_nodes=options.min_nodes_per_partition,
            spares_broken_rules=self._may_fall_back,
        )

    def _record(self, part: CompiledPart, variables: dict[int, Array]) -> Recording:
        device = self._device
        run = NodeRun(part.nodes, part.inputs, part.outputs, self._registry.ops(), variables)
        if not part.delegated:
            self._check_cpu(part.nodes)
            return ReferenceRecording(run)
        if isinstance(device, NodeDevice):
            return device.load_nodes(run)
        assert device is not None
        assert part.plan is not None
        self._registry.plan_ready(device.info.backend, part.plan)
        return device.load(part.plan, guard_bands=self.options.guard_bands)

    def _not_loaded(self, error: DeviceError) -> str:
        assert self._device is not None
        info = self._device.info
        where = f"{info.backend} device {info.index} ({info.name})"
        _LOG.warning("tflgpu: a part of the model runs on the CPU; %s: %s", where, error)
        # Compilers are told to say everything; a line of it is enough for every operator.
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{where} could not load it: {said}"

    def _check_cpu(self, nodes: Sequence[Node]) -> None:
        ops = self._registry.ops()
        refused = [(n, no.reason) for n in nodes if (no := reference_support(n, ops))]
        if refused:
            listed = "; ".join(f"{n.label}: {reason}" for n, reason in refused)
            raise UnsupportedError(
                f"{len(refused)} operators run neither on the device nor on the CPU: {listed}"
            )

    # Reports

    def _all_on_cpu(self, graph: Graph, preserve_all: bool) -> Session:
        session = open_cpu_session(graph, self._registry.ops(), preserve_all=preserve_all)
        reason = (
            "experimental_preserve_all_tensors keeps every tensor on the CPU"
            if preserve_all
            else "; ".join(self.choice.reasons)
        )
        refusals = tuple(attrs.evolve(r, reason=reason) for r in session.report.refusals)
        session.report = attrs.evolve(session.report, refusals=refusals, choice=self.choice.reasons)
        return session

    def _report(self, graph: Graph, compiled: Compiled) -> DelegationReport:
        device = self._device
        assert device is not None
        report = report_of(graph, compiled)
        if report.refusals and not self.options.allow_fallback:
            listed = "; ".join(f"#{r.node} {r.op}: {r.reason}" for r in report.refusals)
            raise UnsupportedError(
                f"{len(report.refusals)} operators cannot run on {device.info.name} and "
                f"allow_fallback is off: {listed}"
            )
        for refusal in report.refusals:
            _LOG.info("tflgpu: #%d %s: %s", refusal.node, refusal.op, refusal.reason)
        return attrs.evolve(
            report,
            backend=device.info.backend,
            device=device.info.name,
            precision=self.precision.value,
            choice=self.choice.reasons + self._precision_reason(),
        )

    def _precision_reason(self) -> tuple[str, ...]:
        wanted = self.options.wanted_precision
        if wanted is self.precision:
            return ()
        return (f"precision {wanted.value} is not there; {self.precision.value} is used",)


def _options(options: DelegateOptions | None, kwargs: dict[str, Any]) -> DelegateOptions:
    if options is not None and kwargs:
        raise OptionError("give either a DelegateOptions or keyword options, not both")
    if options is not None:
        if not isinstance(options, DelegateOptions):
            raise OptionError(f"options is a DelegateOptions, not {type(options).__name__}")
        return options
    return DelegateOptions(**kwargs)
