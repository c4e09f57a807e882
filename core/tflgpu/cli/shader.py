"""`tflgpu shader`: the program text of a node's kernels, in the backend's own language."""

from __future__ import annotations

from typing import Annotated

import typer

from tflgpu.cli import console
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    Device,
    Flags,
    Model,
    Numerics,
    Precision,
    delegate_of,
    with_delegate_flags,
)
from tflgpu.compiler.plan import PlannedDispatch
from tflgpu.contract.device import NodeDevice
from tflgpu.errors import InputError, OptionError
from tflgpu.options import CPU
from tflgpu.plugins.registry import registry
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


@with_delegate_flags
def shader(
    model: Model,
    node: Annotated[
        int | None, typer.Option(help="Operator index in the file; default: a list of all.")
    ] = None,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    language: Annotated[
        str | None,
        typer.Option(help="opencl-c, spirv, wgsl, tree, or a plugin's; default: the device's own."),
    ] = None,
    flags: Flags = NO_FLAGS,
) -> None:
    """Print the kernels of an operator: OpenCL C, SPIR-V assembly, WGSL or the kernel tree.

    They are made for the device; with --language they are written as another API has them.
    Without --node, list the dispatches of an inference: operators, kernel, workgroups.
    """
    if backend == CPU:
        raise OptionError("the CPU has no kernels; `tflgpu devices` lists backends")
    if node is None and language is not None:
        raise OptionError("--language is of an operator's kernels; name one by --node")
    file = read_model(str(model))
    graph = build_graph(file, 0, registry().ops())
    # Its kernels are there to be seen, whether they pay or not.
    shown = {"partitioning": "all", **flags}
    with delegate_of(backend, device, precision, numerics, shown) as delegate:
        opened = delegate.device
        if opened is None or isinstance(opened, NodeDevice):
            raise OptionError(
                f"{_without_kernels(opened)}; `tflgpu devices` says what would, and `--backend "
                "cpu_ref --device 1` shows the kernel trees anywhere"
            )
        dispatches = [
            d for plan in compiled_on(graph, delegate.provider).plans for d in plan.dispatches
        ]
        if node is None:
            _list(dispatches)
            return
        count = len(file.main.operators)
        if not 0 <= node < count:
            raise InputError(f"there is no operator {node}; the model has {count}, from 0")
        found = [d for d in dispatches if node in d.origins]
        if not found:
            raise InputError(
                f"operator {node} ({file.main.operators[node].name}) has no kernel of its own: it "
                "was folded away, only reinterprets a tensor, or runs on the CPU; "
                "`tflgpu inspect` tells which"
            )
        for dispatch in found:
            kernel = dispatch.kernel
            if language is None:
                text = opened.source(kernel)
            else:
                text = registry().shader(language, kernel, delegate.caps)
            _print(dispatch, text)


def _without_kernels(device: NodeDevice | None) -> str:
    if device is None:
        return "there is no device"
    info = device.info
    return f"{info.backend} device {info.index} ({info.name}) runs operators without kernels"


def _list(dispatches: list[PlannedDispatch]) -> None:
    table = console.table(
        "Dispatches", "#", "operators", "kernel", "workgroups", "workgroup", right=("#",)
    )
    for i, d in enumerate(dispatches):
        sizes = ("x".join(map(str, s)) for s in (d.groups, d.kernel.workgroup))
        table.add_row(str(i), d.label, d.kernel.name, *sizes)
    console.show(table)


def _print(dispatch: PlannedDispatch, text: str) -> None:
    groups = "x".join(map(str, dispatch.groups))
    console.plain(f"// {dispatch.label}: {dispatch.kernel.name}, {groups} workgroups")
    console.plain(text.rstrip() + "\n")
