"""The hook specifications: everything that a plugin can do, one hook a function.

A plugin is a module (or object) named by an entry point of group ``tflgpu``. It imports
`tflgpu.sdk.plugin.hookimpl` and defines any of these. Registration hooks return lists of frozen
values and run once; nothing here is called while a model runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from tflgpu.compat.entry import CompatEntry
    from tflgpu.compiler.plan import Plan
    from tflgpu.contract.buffers import MemoryKind
    from tflgpu.contract.device import Allowances, BackendInfo, Device, NodeDevice, Probe
    from tflgpu.ir.graph import Node
    from tflgpu.language.generator import ShaderGenerator
    from tflgpu.lowering.rule import Rule, Site, Unsupported
    from tflgpu.ops.base import OpDef
    from tflgpu.options import DelegateOptions
    from tflgpu.passes.base import Pass

PROJECT = "tflgpu"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def tflgpu_register_backends() -> list[BackendInfo]:
    """Name the backends this plugin brings. Must import without their drivers."""
    raise AssertionError("a specification is never called")


@hookspec(firstresult=True)
def tflgpu_probe(backend: str) -> Probe | None:
    """List the devices of one of your backends, or say why there are none; None for others'.

    Must not create a context, and must not raise.
    """


@hookspec(firstresult=True)
def tflgpu_open_device(
    backend: str, index: int, options: DelegateOptions
) -> Device | NodeDevice | None:
    """Open device ``index`` of one of your backends; None for others'.

    Raises `DeviceError` where it cannot be opened; where there is no such device, the error lists
    those that there are, as "0 = its name".
    """


@hookspec
def tflgpu_register_ops() -> list[OpDef]:
    """Define ops: custom ops, or builtins that tflgpu lacks."""
    raise AssertionError("a specification is never called")


@hookspec
def tflgpu_register_kernels(backend: str) -> list[Rule]:
    """Add kernel rules for a backend; those with a higher rank than the shipped ones win."""
    raise AssertionError("a specification is never called")


@hookspec
def tflgpu_register_passes() -> list[Pass]:
    """Add graph transformations; each is called with the graph and a `PassContext`, which has the
    ops (plugins' too) and the device's capabilities."""
    raise AssertionError("a specification is never called")


@hookspec
def tflgpu_register_generators() -> list[ShaderGenerator]:
    """Add printers of kernels, by the name of their language. Must import without drivers."""
    raise AssertionError("a specification is never called")


@hookspec
def tflgpu_register_memory() -> list[MemoryKind]:
    """Name the objects of your API that inputs and outputs can be bound to. Must import without
    drivers."""
    raise AssertionError("a specification is never called")


@hookspec
def tflgpu_compat_entries(backend: str) -> list[CompatEntry]:
    """Add entries to the device database for a backend: devices to leave out, features that a
    driver lists but breaks, options that suit a device."""
    raise AssertionError("a specification is never called")


@hookspec(firstresult=True)
def tflgpu_node_support(backend: str, node: Node, site: Site) -> Unsupported | None:
    """Veto a node that a rule accepted (a driver's defect, say); None = no objection."""


@hookspec(firstresult=True)
def tflgpu_conformance_allowances(backend: str) -> Allowances | None:
    """Say which conformance cases one of your backends is known to fail, and why, and whether
    it needs a wider tolerance; None for others'."""


@hookspec
def tflgpu_plan_ready(backend: str, plan: Plan) -> None:
    """Look at a plan before it is loaded (to dump or to count); it is not to be changed."""


@hookspec
def tflgpu_register_commands(app: Any) -> None:
    """Add commands to the `tflgpu` command line; ``app`` is its `typer.Typer`."""
