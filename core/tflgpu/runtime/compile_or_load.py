"""The compiled form of a source: loaded from memory, a file or a folder, or compiled and kept.

    memory      a kernel that a device has ready is not compiled again
                (`tflgpu.backend_kit.kernel_cache`)
    file        `GpuDelegate(saved=...)`: this file or an error
    folder      what was kept of a model's bytes, found by their digest without building a graph;
                else what was kept of a graph, found by the graph's digest
    compiler    everything else

A graph and its digest take longer to make than a driver takes to get ready with everything at hand.
So what a model's file becomes is kept under a digest of its bytes, and the graph is built only
where nothing is kept yet, or for what only the graph has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tflgpu.compiler import compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report_of import report_of
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.devices.device_options import unmatched_names
from tflgpu.errors import DeviceError, SavedModelError, UnsupportedError
from tflgpu.errors.blame import LOG
from tflgpu.ir.graph import Graph
from tflgpu.ops.unknown import UnknownOp
from tflgpu.options import InferencePreference
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.provider import Provider
from tflgpu.saved.facts import facts_of, facts_of_options, facts_of_registry
from tflgpu.saved.source import Facts, Source
from tflgpu.saved.start import Start, start_of

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target


class _NotPlainError(Exception):
    """A graph that takes more than its file to tell what becomes of it."""


def compile_or_load(graph: Graph, target: Target, provider: Provider) -> Compiled:
    """The compiled form of a graph: from a saved model or the cache folder, else compiled now.

    Args:
        graph: As it was read; it is not changed.
        target: What to compile for, of the provider's device, which must be there.
        provider: Says where compiled models come from.

    Raises:
        SavedModelError: a saved model was given, and it is not this one for this device.
        PluginError, GraphError: as `tflgpu.compiler.compile.compile`.
    """
    opened = provider.usable()
    assert opened.device is not None
    plugins = opened.registry.plugins
    return opened.noted(provider.keeping.compiled(graph, target, opened.device, plugins))


def kept_start(source: Source, provider: Provider) -> Start | None:
    """The `Start` of a model's file: read from the cache folder, or compiled now and kept there.
    None where there is no device that runs kernels, or where more than the file decides what
    becomes of it: then there must be a graph.

    Raises:
        PluginError, GraphError: as `compile_or_load`.
        ModelError: as `Source.graph`, where that is built; as `Source.check`.
    """
    opened = provider.opened
    if opened is None or not _keeps(provider, opened):
        return None
    source.compile = partial(_compiled, opened)
    device = opened.device
    if device is None or isinstance(device, NodeDevice):
        return None
    try:
        facts = _facts(opened, device)
    except SavedModelError:
        return None  # the reason is told where the graph is compiled
    try:
        return provider.keeping.start(source, facts, device, partial(fresh_start, source, opened))
    except _NotPlainError:
        return None


def tuned_first(graph: Graph, opened: OpenedDevice) -> None:
    """Tune the kernels of a graph before it is compiled, where the preference SUSTAINED_SPEED asks
    for it. Where that fails they stay as predicted, which is logged."""
    preference = opened.options.inference_preference
    if preference is InferencePreference.SUSTAINED_SPEED and isinstance(opened.device, Device):
        from tflgpu.runtime.tuning import tune

        try:
            found = tune(opened, graph, "fast")
        except (DeviceError, UnsupportedError) as error:
            LOG.warning("tflgpu: inference_preference: kernels are not tuned: %s", str(error))
        else:
            LOG.info("tflgpu: inference_preference: %s", str(found))


def fresh_start(source: Source, opened: OpenedDevice) -> Start:
    """The `Start` of a model's file, compiled now."""
    graph = source.graph
    # Kernels that a backend may have for unknown operators, and what runs without, are not in the
    # key.
    if any(isinstance(node.attrs, UnknownOp) for node in graph):
        raise _NotPlainError
    tuned_first(graph, opened)
    source.compiled = compiled = _compiled(opened, source)
    source.check()
    unmatched = (f"tflgpu: {each}" for each in unmatched_names(opened.options, graph))
    return start_of(graph, compiled, report_of(graph, compiled), (*source.warnings, *unmatched))


def _keeps(provider: Provider, opened: OpenedDevice) -> bool:
    """Whether what becomes of a file depends on nothing but what `_facts` say. An accuracy guard
    compiles besides, and a rule that broke is left out from then on."""
    options, keeping = provider.options, provider.keeping
    return (
        keeping.folder is not None
        and keeping.saved is None
        and options.accuracy_guard is None
        and not opened.broken_rules
    )


def _facts(opened: OpenedDevice, device: Device) -> Facts:
    known = opened.registry
    return (
        *facts_of(device.info, device.caps, known.plugins),
        ("usable", repr(opened.caps)),
        ("tuned", opened.kept_choices.digest),
        ("alignment", str(device.alignment)),
        ("computed in", opened.precision.name),
        ("partitioning", opened.partitioning[0].name),
        ("spares broken rules", str(opened.may_fall_back)),
        *facts_of_options(opened.options),
        *facts_of_registry(known, device.info.backend),
    )


def _compiled(opened: OpenedDevice, source: Source) -> Compiled:
    return opened.noted(compile_graph(source.graph, opened.target()))
