"""`estimate`: how much memory of a device a model would use, without preparing it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing

from tflgpu.contract.device import NodeDevice
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import OptionError, UnsupportedError
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ops.unknown import UnknownOp, refuse_unknown
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.plugins.registry import registry
from tflgpu.runtime.estimate import Estimate, estimate_of
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


def estimate(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    delegate: GpuDelegate | None = None,
    shapes: Mapping[int, Sequence[int]] | None = None,
    **options: Unpack[OptionKeywords],
) -> Estimate:
    """How much memory of a device a model would use, and how many kernels a run would launch. It is
    compiled to plans; no kernel is built, and nothing is allocated.

        print(tflgpu.estimate("mobilenet.tflite", backend="vulkan").memory)

    Args:
        model: Path of a `.tflite` file, or what is in it. Its main subgraph is looked at.
        delegate: Whose device it would run on.
        shapes: Other shapes of inputs, by ``index`` in their details, as `resize_tensor_input`
            takes.
        options: Or those of `DelegateOptions`, for a delegate of its own that is closed again.

    Raises:
        OptionError: both a delegate and options, or an unknown option.
        ModelError: no such file, or no well-formed model; or it does not work out at these shapes.
        UnsupportedError: it takes several graphs to run it (loops, shapes that are computed), or
            the device runs operators itself and does not tell what memory they take.
        DeviceError: the backend or device asked for is not there or cannot be opened.
        PluginError, GraphError: as `tflgpu.compiler.compile.compile`.
    """
    if delegate is not None:
        if options:
            raise OptionError("give either a delegate or options, not both")
        return _estimate(model, delegate, shapes or {})
    with GpuDelegate(**options) as own:
        return _estimate(model, own, shapes or {})


def _estimate(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    delegate: GpuDelegate,
    shapes: Mapping[int, Sequence[int]],
) -> Estimate:
    device, precision = delegate.device, delegate.precision.value
    if isinstance(device, NodeDevice):
        raise UnsupportedError(
            f"backend {device.info.backend} runs operators itself and does not tell what memory "
            "they take; ask for another backend or device"
        )
    file = read_model(os.fspath(model) if isinstance(model, (str, os.PathLike)) else model)
    wanted = {index: tuple(shape) for index, shape in shapes.items()}
    with closing(CpuSide(registry(), delegate.options)) as cpu:
        graph = build_graph(file, 0, delegate.provider.ops, wanted, foreign=cpu.infer)
    said = "no estimate is made of, since it takes several graphs to run them,"
    refuse_unknown(graph, said)
    # LiteRT knows what a branch gives, and could run it; where there is a device, that runs its
    # parts.
    hosts = [n.label for n in graph if isinstance(n.attrs, UnknownOp) and n.attrs.host]
    if hosts and device is not None:
        raise UnsupportedError(f"{said} {len(hosts)} operators: {', '.join(hosts)}")
    if device is None:
        return Estimate("", "", precision, (), len(list(graph)))
    return estimate_of(compiled_on(graph, delegate.provider), device, precision)
