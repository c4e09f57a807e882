"""A source and a provider become a session.

    source -> compile_or_load -> Start -> Loader -> Session
                    |                       |
                    |         accuracy_guard: the first runs are compared    only where an option
              inference_preference: kernels are tuned before                 asks for it

Where there is no device, or nothing that pays goes to it, the CPU runs the graph as the file has
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs

from tflgpu.compiler import compile_graph
from tflgpu.compiler.carried_state import Pairs
from tflgpu.compiler.parts import Compiled, Declined, all_declined
from tflgpu.compiler.report import DelegationReport, insist, tell
from tflgpu.compiler.report_of import placed, report_of
from tflgpu.devices.choose import ALL_ON_CPU
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.device_options import unmatched_names
from tflgpu.errors import MemoryLimitError, UnsupportedError
from tflgpu.errors.blame import LOG
from tflgpu.ir.graph import Graph
from tflgpu.ir.rewrite import with_all_results
from tflgpu.lowering.reason import ReasonCode
from tflgpu.ops.unknown import refuse_unknown
from tflgpu.runtime.compile_or_load import compile_or_load, fresh_start, kept_start, tuned_first
from tflgpu.runtime.loading import Loader, Opened
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.provider import Provider, failure_of_default, warn_of_default
from tflgpu.runtime.session import Session
from tflgpu.saved.source import Source
from tflgpu.saved.start import Start

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target

#: The report of what was loaded, which may be less than what was compiled.
Report: TypeAlias = Callable[[Compiled], DelegationReport]


def open_graph(
    graph: Graph,
    provider: Provider,
    cpu: CpuSide,
    *,
    preserve_all: bool = False,
    fuse: bool = True,
    keeping: Pairs = (),
) -> Session:
    """A session of a graph, which is not changed.

    Args:
        graph: As the file has it.
        provider: Where it runs. Where that `Provider.gives_way`, the CPU runs what fails there.
        cpu: Runs what the device does not.
        preserve_all: Every tensor of the file is there after a run: each operator leaves its
            results in host memory, so that nothing is merged with anything.
        fuse: Whether operators may be merged: several in one kernel, or in one another.
        keeping: Results that are inputs of the next run. What can stay on the device between runs
            is among the session's `kept`, and `not_kept` says why of the others.

    Raises:
        UnsupportedError: an operator that neither the device nor the CPU can run, or any refusal
            where ``allow_fallback`` is off.
        SavedModelError: a saved model was given, and it is not this one for this device; or there
            is no device.
        DeviceError: the device could not load a part, and was asked for or ``allow_fallback`` is
            off. Otherwise that part runs on the CPU, which the report and a warning say.
        PluginError: a plugin's graph pass or op broke its contract; or its kernel rule did, under
            the same conditions. Otherwise other rules, or the CPU, take its place.
        GraphError: a plugin's graph pass left a broken graph.
    """
    try:
        return _opened(graph, provider, cpu, preserve_all, fuse, keeping)
    except Exception as error:
        if not provider.gives_way:
            raise
        session = open_on_cpu(
            graph,
            attrs.evolve(provider, reason=failure_of_default(error), code=ReasonCode.DEVICE_FAILED),
            cpu,
            preserve_all,
        )
        warn_of_default(error)  # the model is not at fault: the CPU takes it
        return session


def open_source(source: Source, provider: Provider, cpu: CpuSide) -> tuple[Session, Start] | None:
    """A session of a model's file, from what is kept of it; kept now where it was not yet. None
    where it takes the graph: nothing can be kept of it, or a device that gives way failed.

    Raises:
        DeviceError, PluginError, GraphError, UnsupportedError: as `open_graph`.
        ModelError: as `Source.graph`, where that is built; as `Source.check`.
    """
    try:
        return _opened_source(source, provider, cpu)
    except Exception:
        if not provider.gives_way:
            raise
        return None  # it may fail again with the graph, and then the CPU takes over


def open_on_cpu(graph: Graph, provider: Provider, cpu: CpuSide, preserve_all: bool) -> Session:
    """A session of a graph on the CPU alone, for the provider's reason.

    Raises:
        UnsupportedError: an operator that the CPU cannot run.
    """
    from tflgpu.runtime.cpu_session import open_cpu_session

    return open_cpu_session(
        graph,
        provider.ops,
        preserve_all=preserve_all,
        side=cpu,
        numerics=provider.numerics,
        reason=provider.reason,
        code=provider.code,
    )


def open_whole(graph: Graph, provider: Provider) -> Opened | Sequence[Declined]:
    """A graph wholly on the device, or the operators that are in the way.

    Raises:
        StateError, DeviceError, PluginError, GraphError: as `open_graph`.
    """
    opened = provider.usable()
    if opened.device is None:
        return all_declined(graph, opened.why_none, ReasonCode.NO_DEVICE)
    tuned_first(graph, opened)
    target = opened.target().for_all()
    compiled = compile_or_load(graph, target, provider)
    if compiled.refusals:
        return compiled.refusals
    loader = attrs.evolve(opened.loader(), whole=True, may_fall_back=False)

    def report(loaded: Compiled) -> DelegationReport:
        return opened.signed(report_of(graph, loaded))

    try:
        session = _loaded(graph, compiled, target, provider, loader, report)
    except MemoryLimitError as error:
        return all_declined(graph, str(error), ReasonCode.DEVICE_LIMIT)
    gain, seconds = (sum(getattr(p, n) for p in compiled.parts) for n in ("gain", "seconds"))
    return Opened(session, gain, seconds, sum(plan.device_bytes for plan in compiled.plans))


def compiled_on(graph: Graph, provider: Provider) -> Compiled:
    """The compiled form of a graph on a provider's device, without loading it.

    Raises:
        StateError, PluginError, GraphError: as `open_graph`.
    """
    return compile_or_load(graph, provider.usable().target(), provider)


def sees_each_run(provider: Provider) -> str:
    """The option for which runs are as they would be by themselves; "" where there is none."""
    options = provider.options
    if provider.keeping.saved is not None:
        return "a saved model is used as it is (saved)"
    if options.accuracy_guard is not None:
        return "runs are made a second time with the same inputs (accuracy_guard)"
    return ""


def warn_of_names(graph: Graph, opened: OpenedDevice) -> None:
    """Say which names in the options no operator of a graph has."""
    for sentence in unmatched_names(opened.options, graph):
        LOG.warning("tflgpu: %s", sentence)


def insisted(report: DelegationReport, opened: OpenedDevice) -> DelegationReport:
    """A report with the device in it.

    Raises:
        UnsupportedError: an operator stays on the CPU, and ``allow_fallback`` is off.
    """
    assert opened.device is not None
    if not opened.options.allow_fallback:
        insist(report, opened.device.info.name)
    return opened.signed(report)


# Inside


def _opened(
    graph: Graph, provider: Provider, cpu: CpuSide, preserve_all: bool, fuse: bool, keeping: Pairs
) -> Session:
    if provider.opened is None:
        return open_on_cpu(graph, provider, cpu, preserve_all)
    opened = provider.usable()
    if opened.device is None:
        return _without_device(graph, provider, opened, cpu, preserve_all)
    refuse_unknown(graph, "neither the device nor the CPU can run")
    warn_of_names(graph, opened)
    if fuse and not preserve_all and provider.keeping.saved is None:
        tuned_first(graph, opened)
    target = opened.target() if fuse else opened.target().unfused()
    wanted = with_all_results(graph) if preserve_all else graph
    compiled = compile_or_load(wanted, target, provider)
    report = partial(_report, graph, opened)
    if not compiled.delegated:
        return _none_delegated(graph, report(compiled), provider, cpu, preserve_all)
    loader, why = opened.loader(cpu), _keeps_nothing(provider) if keeping else ""
    if keeping and not why:
        session = opened.used(lambda: loader.open(compiled, report, pairs=keeping))
    else:
        session = _loaded(wanted, compiled, target, provider, loader, report)
        session.not_kept = {given: why for _, given in keeping}
    if preserve_all:  # results of constants, which reading the file has computed
        session.keep_constants(graph)
    return _told(session, provider)


def _keeps_nothing(provider: Provider) -> str:
    if provider.gives_way:
        return "nobody asked for this device, and the CPU goes on whatever becomes of it"
    return sees_each_run(provider)


def _opened_source(
    source: Source, provider: Provider, cpu: CpuSide
) -> tuple[Session, Start] | None:
    if provider.opened is None:
        return None
    opened = provider.usable()
    start = kept_start(source, provider)
    if start is None:
        return None
    try:
        return _of_start(source, start, provider, opened, cpu), start
    except Exception:
        # What was compiled just now is as it would be without a file.
        if vars(source).get("compiled") is start.compiled:
            raise
    # What was kept has no nodes of a part, which would let that part run on the CPU.
    fresh = fresh_start(source, opened)
    return _of_start(source, fresh, provider, opened, cpu), fresh


def _of_start(
    source: Source, start: Start, provider: Provider, opened: OpenedDevice, cpu: CpuSide
) -> Session:
    compiled = start.compiled
    if not compiled.delegated:
        report = _report(source.graph, opened, compiled)
        return _none_delegated(source.graph, report, provider, cpu, preserve_all=False)

    def report_of_loaded(loaded: Compiled) -> DelegationReport:
        if loaded is compiled:
            return insisted(start.report, opened)
        return _report(source.graph, opened, loaded)  # a part could not be loaded

    loader = opened.loader(cpu)
    return _told(opened.used(lambda: loader.open(compiled, report_of_loaded)), provider)


def _loaded(
    graph: Graph,
    compiled: Compiled,
    target: Target,
    provider: Provider,
    loader: Loader,
    report: Report,
) -> Session:
    """A loaded session, guarded where that is asked for."""
    opened, options = provider.usable(), provider.options
    session = opened.used(lambda: loader.open(compiled, report))
    if options.accuracy_guard is not None:
        from tflgpu.runtime.guard.guard import guard_session

        def again(graph: Graph, target: Target) -> Compiled:
            return opened.noted(compile_graph(graph, target))

        guard_session(session, graph, target, loader, again, report, provider)
    return session


def _without_device(
    graph: Graph, provider: Provider, opened: OpenedDevice, cpu: CpuSide, preserve_all: bool
) -> Session:
    """The CPU runs all of it, since there is no device and none was asked for by name."""
    if not opened.options.allow_fallback:
        raise UnsupportedError(
            "there is no device and allow_fallback is off: "
            + opened.why_none.replace(ALL_ON_CPU, "")
        )
    provider.keeping.insist_on_device(None, opened.why_none)
    session = open_on_cpu(graph, provider, cpu, preserve_all)
    session.report = attrs.evolve(session.report, choice=opened.choice.reasons)
    return session


def _none_delegated(
    graph: Graph, report: DelegationReport, provider: Provider, cpu: CpuSide, preserve_all: bool
) -> Session:
    """The CPU runs all of it, as the file has it and not as the device would have had it."""
    session = open_on_cpu(graph, provider, cpu, preserve_all)
    ran = session.report
    session.report = attrs.evolve(
        placed(report, {r.node: r.runs_on for r in ran.refusals}),
        integers=ran.integers,
        in_floats=ran.in_floats,
        seconds=report.cpu_seconds,
    )
    return _told(session, provider)


def _told(session: Session, provider: Provider) -> Session:
    tell(session.report)
    if provider.gives_way:
        session.keep_at_hand()  # the CPU can go on with all there is, even if the device is lost
    return session


def _report(graph: Graph, opened: OpenedDevice, compiled: Compiled) -> DelegationReport:
    return insisted(report_of(graph, compiled), opened)
