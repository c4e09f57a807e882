"""`GpuDelegate`: chooses a device, compiles for it, and loads what was compiled.

choice of a device (`choose`) -> graph -> compiled parts (`compiler`) -> session (`loading`)
"""

from __future__ import annotations

import logging
from typing import Any

import attrs

from tflgpu.compat.judge import effective_caps
from tflgpu.compiler.compile import Compiled
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import DelegationReport, insist, report_of
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.contract.forks import Holder, immortal
from tflgpu.devices.choose import open_best
from tflgpu.devices.targets import precision_on, target_on
from tflgpu.errors import OptionError, StateError, UnsupportedError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.options import DelegateOptions
from tflgpu.plugins import Registry, registry
from tflgpu.runtime.loading import Loader
from tflgpu.runtime.session import Session, open_cpu_session

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
        if self._device is None:
            return Precision.F32
        return precision_on(self.caps, self.options.wanted_precision)

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
        bands, spare = self.options.guard_bands, self._may_fall_back
        loader = Loader(self._device, self._registry, bands, spare)
        return loader.open(self.compile(graph), lambda compiled: self._report(graph, compiled))

    def compile(self, graph: Graph) -> Compiled:
        """What a graph becomes on this device, without loading it.

        Raises:
            PluginError, GraphError: as `open_session`.
        """
        assert self._device is not None
        target = target_on(
            self._device, self.caps, self._registry, self.options,
            broken_rules=self._broken_rules, spares_broken_rules=self._may_fall_back,
        )  # fmt: skip
        compiled = compile_graph(graph, target)
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

    # Inside

    @property
    def _may_fall_back(self) -> bool:
        """Whether what fails on the device may run elsewhere: nobody asked for just this device."""
        return self.options.allow_fallback and not self.choice.explicit

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
        assert self._device is not None
        info = self._device.info
        report = report_of(graph, compiled)
        if not self.options.allow_fallback:
            insist(report, info.name)
        for refusal in report.refusals:
            _LOG.info("tflgpu: #%d %s: %s", refusal.node, refusal.op, refusal.reason)
        return attrs.evolve(
            report,
            backend=info.backend,
            device=info.name,
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
