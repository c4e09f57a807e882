"""A model is compiled into a file, for `GpuDelegate(saved=...)`."""

from __future__ import annotations

import os
from pathlib import Path

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.errors import SavedModelError, TflgpuError
from tflgpu.ir.graph import Graph
from tflgpu.ops.unknown import for_the_host, refuse_unknown
from tflgpu.runtime.compile_or_load import tuned_first
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.opening import insisted
from tflgpu.runtime.provider import Provider
from tflgpu.saved import location
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


def save(provider: Provider, model: str | os.PathLike[str] | bytes, path: Path) -> DelegationReport:
    """As `tflgpu.delegate.GpuDelegate.save`.

    Raises:
        TflgpuError: as there.
    """
    opened = provider.opened
    assert opened is not None
    opened.check_open()
    device = opened.kernel_device(SavedModelError, "saved")
    advice = ". Run it without a file: what its pieces become is kept in the cache folder"
    graph = graph_of(opened, model, SavedModelError, "saved", advice)
    tuned_first(graph, opened)
    target = opened.target()
    compiled = opened.noted(compile_graph(graph, target))
    report = insisted(report_of(graph, compiled), opened)
    location.write(path, compiled, graph, target, device, opened.registry.plugins)
    return report


def graph_of(
    opened: OpenedDevice,
    model: str | os.PathLike[str] | bytes,
    error: type[TflgpuError],
    done: str,
    advice: str = "",
) -> Graph:
    """The main subgraph of a model that runs as a whole.

    Raises:
        TflgpuError: of the type ``error``: it runs by the piece, so that it cannot be ``done``.
        ModelError: no such file, or no well-formed model.
        UnsupportedError: an operator that neither the device nor the CPU can run.
    """
    file = read_model(model if isinstance(model, bytes) else os.fspath(model))
    graph = build_graph(file, 0, opened.registry.ops(), foreign=opened.cpu.infer)
    pieces = for_the_host(graph, has_device=True)
    if pieces:
        named = ", ".join(dict.fromkeys(n.label for n, _ in pieces[:5]))
        more = f" and {len(pieces) - 5} others" if len(pieces) > 5 else ""
        raise error(
            f"a {done} model is of one graph, and this model is run by the piece, since the host "
            f"has a part in it: {named}{more} (control flow, variables, texts, or shapes that only "
            f"a run tells){advice}"
        )
    refuse_unknown(graph, "neither the device nor the CPU can run")
    return graph
