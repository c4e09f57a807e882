"""`GpuDelegate`: the one place that orders the stages, from a graph to a running session.

graph -> float view -> passes -> partition -> (per part) rules -> plan -> recording -> session
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tflgpu.blame import attempt
from tflgpu.choose import open_best
from tflgpu.compat.judge import effective_caps
from tflgpu.errors import DeviceError, OptionError, StateError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.lowering import Precision
from tflgpu.kernel.rule import ElementwiseRule, KernelRule, Site, Unsupported
from tflgpu.kernels.registry import KernelRegistry, without_rules
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.options import DelegateOptions
from tflgpu.partition import Part, Partitioning, partition
from tflgpu.partition import Refusal as NodeRefusal
from tflgpu.passes.base import run_passes
from tflgpu.passes.float_view import FloatView, float_view
from tflgpu.passes.registry import default_passes
from tflgpu.plugins import Registry, registry
from tflgpu.runtime.build import RuleError
from tflgpu.runtime.checked import close_all
from tflgpu.runtime.forks import Holder, immortal
from tflgpu.runtime.limits import tensor_limits
from tflgpu.runtime.lower import LoweringInput, OverLimit, lower
from tflgpu.runtime.protocols import Device, NodeDevice, NodeRun, Plan, Recording
from tflgpu.runtime.reference import ReferenceRecording, reference_support
from tflgpu.runtime.report import DelegationReport, Refusal
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
        view = self._prepare(graph)
        work = view.graph
        parts, plans = self._planned(view)
        variables = make_variables(work)
        steps: list[Step] = []
        try:
            for index in range(len(parts.parts)):
                try:
                    recording = self._record(parts.parts[index], plans[index], variables)
                except DeviceError as error:
                    if self.choice.explicit or not self.options.allow_fallback:
                        raise
                    parts = _on_cpu(parts, index, self._not_loaded(error))
                    recording = self._record(parts.parts[index], None, variables)
                part = parts.parts[index]
                steps.append(Step(recording, tuple(part.inputs), tuple(part.outputs), _label(part)))
            report = self._report(graph, work, parts, steps)
            return Session(work, steps, report, variables)
        except BaseException:
            attempt(close_all, [step.recording for step in steps])
            raise

    def plans(self, graph: Graph) -> list[Plan]:
        """The plans a graph would get on this device, without loading them (for tools)."""
        _, plans = self._planned(self._prepare(graph))
        return [plan for plan in plans if plan is not None]

    def partition(self, graph: Graph) -> Partitioning:
        """Where each node of a graph would go (for tools)."""
        parts, _ = self._planned(self._prepare(graph))
        return parts

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

    def _kernels(self) -> KernelRegistry:
        assert self._device is not None
        rules = self._registry.rules(self._device.info.backend)
        return KernelRegistry(without_rules(rules, self._broken_rules))

    def _site(self) -> Site:
        return Site(self.caps, self.precision)

    def _prepare(self, graph: Graph) -> FloatView:
        """The graph as it is partitioned: quantized models in their float view, passes run."""
        view = float_view(graph, self._registry.ops())
        passes = default_passes(self._registry.passes())
        run_passes(view.graph, passes, self._registry.ops())
        return view

    def _planned(self, view: FloatView) -> tuple[Partitioning, list[Plan | None]]:
        """The parts, and the plan of each that runs kernels.

        Some limits show only in a finished kernel. A node that is over one goes to the CPU, and
        the parts are made anew without it.
        """
        over: dict[int, str] = {}
        while True:
            parts = self._partition(view, over)
            try:
                kernels = not isinstance(self._device, NodeDevice)
                plans = [self._plan(p) if p.delegated and kernels else None for p in parts.parts]
            except OverLimit as error:
                over[id(error.node)] = str(error)
            except RuleError as error:
                known = error.rules <= self._broken_rules.keys()
                if known or self.choice.explicit or not self.options.allow_fallback:
                    raise
                _LOG.warning("tflgpu: a kernel rule is left out: %s", error)
                self._broken_rules.update(dict.fromkeys(error.rules, str(error)))
            else:
                return parts, plans

    def _partition(self, view: FloatView, over: Mapping[int, str]) -> Partitioning:
        kernels, site = self._kernels(), self._site()

        def supported(node: Node) -> Unsupported | None:
            if id(node) in over:
                return Unsupported(over[id(node)])
            if not self.options.quantized_models_allowed and view.origins.intersection(
                node.origins
            ):
                return Unsupported("it is quantized, and quantized_models_allowed is off")
            return self._support(node, kernels, site)

        return partition(
            view.graph,
            supported,
            max_partitions=self.options.max_delegated_partitions,
            min_nodes=self.options.min_nodes_per_partition,
        )

    def _support(self, node: Node, kernels: KernelRegistry, site: Site) -> Unsupported | None:
        device, ops = self._device, self._registry.ops()
        assert device is not None
        if isinstance(device, NodeDevice):
            return device.supports(node, ops)
        refused = tensor_limits(node, site) or _known(node, ops)
        if refused is not None:
            return refused
        found = kernels.select(node, site)
        if isinstance(found, Unsupported):
            return found
        return self._registry.node_support(device.info.backend, node, site)

    def _record(self, part: Part, plan: Plan | None, variables: dict[int, Array]) -> Recording:
        device = self._device
        run = NodeRun(
            tuple(part.nodes), tuple(part.inputs), tuple(part.outputs), self._registry.ops(),
            variables,
        )  # fmt: skip
        if not part.delegated:
            self._check_cpu(part.nodes)
            return ReferenceRecording(run)
        if isinstance(device, NodeDevice):
            return device.load_nodes(run)
        assert device is not None
        assert plan is not None
        self._registry.plan_ready(device.info.backend, plan)
        return device.load(plan, guard_bands=self.options.guard_bands)

    def _not_loaded(self, error: DeviceError) -> str:
        assert self._device is not None
        info = self._device.info
        where = f"{info.backend} device {info.index} ({info.name})"
        _LOG.warning("tflgpu: a part of the model runs on the CPU; %s: %s", where, error)
        # Compilers are told to say everything; a line of it is enough for every operator.
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{where} could not load it: {said}"

    def _plan(self, part: Part) -> Plan:
        device = self._device
        assert isinstance(device, Device)
        kernels, site, ops = self._kernels(), self._site(), self._registry.ops()
        rules: dict[int, KernelRule] = {}
        for node in part.nodes:
            rule = kernels.select(node, site)
            if isinstance(rule, Unsupported):  # a plugin's rule has changed its mind
                raise OverLimit(node, rule.reason)
            rules[id(node)] = rule

        def elementwise(node: Node) -> ElementwiseRule | None:
            return kernels.elementwise(node, site)

        views = frozenset(id(n) for n in part.nodes if ops[n.op].is_view)
        request = LoweringInput(
            part.nodes, part.inputs, part.outputs, rules, elementwise, views, site
        )
        return lower(request, device.alignment)

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

    def _report(
        self, graph: Graph, work: Graph, parts: Partitioning, steps: Sequence[Step]
    ) -> DelegationReport:
        device = self._device
        assert device is not None
        names = {origin: node.op for node in graph for origin in node.origins}
        by_origin: dict[int, Refusal] = {}  # an operator's simulator says nothing new
        for left in parts.refusals:
            for origin in left.origins:
                by_origin.setdefault(origin, Refusal(origin, names[origin], left.reason))
        refusals = tuple(by_origin.values())
        if refusals and not self.options.allow_fallback:
            listed = "; ".join(f"#{r.node} {r.op}: {r.reason}" for r in refusals)
            raise UnsupportedError(
                f"{len(refusals)} operators cannot run on {device.info.name} and "
                f"allow_fallback is off: {listed}"
            )
        for refusal in refusals:
            _LOG.info("tflgpu: #%d %s: %s", refusal.node, refusal.op, refusal.reason)
        total = set(names)
        refused = {r.node for r in refusals}
        on_device = [p for p in parts.parts if p.delegated]
        return DelegationReport(
            total_nodes=len(total),
            # What the passes folded away costs nothing; it counts as done by the device.
            delegated_nodes=len(total - refused) if on_device or not refused else 0,
            refusals=refusals,
            partitions=len(on_device),
            dispatches=sum(getattr(s.recording, "dispatches", 0) for s in steps),
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


def _known(node: Node, ops: Mapping[str, Any]) -> Unsupported | None:
    refused = reference_support(node, ops)
    if refused is not None:
        return refused
    reason = ops[node.op].limits(node)
    return None if reason is None else Unsupported(reason)


def _on_cpu(parts: Partitioning, index: int, reason: str) -> Partitioning:
    """The same parts, one of them on the CPU after all."""
    part = parts.parts[index]
    moved = attrs.evolve(part, delegated=False, gain=0.0)
    refusals = tuple(NodeRefusal(n.label, n.op, tuple(n.origins), reason) for n in part.nodes)
    return Partitioning(
        (*parts.parts[:index], moved, *parts.parts[index + 1 :]), parts.refusals + refusals
    )


def _label(part: Part) -> str:
    return f"{len(part.nodes)} nodes on the {'device' if part.delegated else 'CPU'}"
