"""What is done with a model's file before it runs: it is compiled into another, for
`GpuDelegate(saved=...)`, or its kernels are tuned."""

from __future__ import annotations

import os
from pathlib import Path

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.errors import OptionError, SavedModelError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.ir.graph import Graph
from tflgpu.ops.unknown import for_the_host, refuse_unknown
from tflgpu.runtime.compile_or_load import tuned_first
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.opening import insisted
from tflgpu.runtime.provider import Provider
from tflgpu.runtime.tuning import EFFORTS, Progress, tune
from tflgpu.saved import location
from tflgpu.saved.kept_choices import Tuning
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


def save(provider: Provider, model: str | os.PathLike[str] | bytes, path: Path) -> DelegationReport:
    """Write what a model becomes to a file: `GpuDelegate.save`, whose errors it raises."""
    opened = provider.usable()
    device = opened.kernel_device(SavedModelError, "saved")
    advice = ". Run it without a file: what its pieces become is kept in the cache folder"
    graph = _graph_of(opened, model, SavedModelError, "saved", advice)
    tuned_first(graph, opened)
    target = opened.target()
    compiled = opened.noted(compile_graph(graph, target))
    report = insisted(report_of(graph, compiled), opened)
    location.write(path, compiled, graph, target, device, opened.registry.plugins)
    return report


def tune_model(
    opened: OpenedDevice,
    model: str | os.PathLike[str] | bytes,
    effort: str,
    progress: Progress | None,
) -> Tuning:
    """Time ways to write a model's kernels: `GpuDelegate.tune`, whose errors it raises."""
    if effort not in EFFORTS:
        raise OptionError(f"effort is one of {', '.join(EFFORTS)}, not {shown(effort)}")
    opened.check_open()
    opened.kernel_device(UnsupportedError, "tuned")
    graph = _graph_of(opened, model, UnsupportedError, "tuned")
    return tune(opened, graph, effort, progress)


def _graph_of(
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
