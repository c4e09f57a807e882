"""A model is compiled into a file, for `GpuDelegate(saved=...)`."""

from __future__ import annotations

import os
from pathlib import Path

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import SavedModelError, TflgpuError
from tflgpu.ir.graph import Graph
from tflgpu.ops.unknown import for_the_host, refuse_unknown
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
    opened = opened_of(provider)
    device = device_of(opened, SavedModelError, "saved")
    advice = ". Run it without a file: what its pieces become is kept in the cache folder"
    graph = graph_of(opened, model, SavedModelError, "saved", advice)
    target = opened.target()
    compiled = opened.noted(compile_graph(graph, target))
    report = insisted(report_of(graph, compiled), opened)
    location.write(path, compiled, graph, target, device, opened.registry.plugins)
    return report


def opened_of(provider: Provider) -> OpenedDevice:
    """The device of a delegate, in use.

    Raises:
        StateError: it is closed.
    """
    opened = provider.opened
    assert opened is not None
    opened.check_open()
    return opened


def device_of(opened: OpenedDevice, error: type[TflgpuError], done: str) -> Device:
    """The device, if it runs kernels.

    Raises:
        TflgpuError: of the type ``error``: it does not, so that nothing can be ``done``.
    """
    device = opened.device
    if device is None or isinstance(device, NodeDevice):
        here = (
            "there is no device"
            if device is None
            else f"{device.info.backend} device {device.info.index} ({device.info.name}) has no "
            "kernels"
        )
        raise error(
            f"{here}, and only what is compiled for a device that runs "
            f"kernels can be {done}; `tflgpu devices` lists what there is"
        )
    return device


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
