"""Checks what a backend's device returns, when it is opened and when plans are loaded.

What it returns is looked at (counts, shapes, types, finite times), and what it raises is made an
error of ours, a `DeviceError` that names the backend and the plugin that brought it. All is looked
at when a device is opened or a plan is loaded, and the outputs of a recording after each run too.

Devices that tflgpu ships come through the same door, but what they load and allocate is handed on
as it is: it has the bases of `tflgpu.backend_kit`, and the conformance suite shows that it keeps
the contract. Ctrl-C always goes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import attrs
import numpy as np

from tflgpu.checks.buffers import checked_buffer
from tflgpu.checks.overdue import close_what_ended, is_given_up
from tflgpu.checks.plugin_caller import PluginCaller, PluginProxy, close_quietly
from tflgpu.checks.recording import checked_recording
from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import (
    CustomOps,
    Device,
    DeviceInfo,
    ForeignOps,
    NodeDevice,
    NodeRun,
    Recording,
    read_uuid,
)
from tflgpu.contract.offers import offers
from tflgpu.errors import DeviceError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, describe, shown
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.unknown import unknown_reason

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel
    from tflgpu.ops.base import OpDef

_NODE_DEVICE = ("info", "caps", "supports", "load_nodes", "close")
_DEVICE = ("info", "caps", "alignment", "load", "source", "allocate", "import_buffer", "close")


class _Checked(PluginProxy):
    """What both kinds of device have. ``info`` and ``caps`` are asked for once."""

    def __init__(self, inner: Any, party: PluginCaller, backend: str, index: int) -> None:
        super().__init__(inner, party)
        self._closed = False
        self.info = _info(party.call("info", getattr, inner, "info"), party, backend, index)
        self.caps = _caps(party.call("caps", getattr, inner, "caps"), party)

    def close(self) -> None:
        """Release the device; twice is harmless.

        Raises:
            DeviceError: it failed at that.
        """
        self._closed = True
        super().close()

    def _load(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """The recording that the device's ``load`` gives. Every fault is a `DeviceError`, so that
        the part can run elsewhere."""
        try:
            return self._party.call(what, getattr(self.inner, what), *args, **kwargs)
        except DeviceError:
            raise
        except TflgpuError as error:
            if self._closed or self._party.shipped:
                raise
            raise self._party.broke(f"{what} raised {describe(error)}") from error


class CheckedDevice(_Checked):
    """A `Device` around another."""

    def __init__(self, inner: Any, party: PluginCaller, backend: str, index: int) -> None:
        super().__init__(inner, party, backend, index)
        alignment = party.call("alignment", getattr, inner, "alignment")
        if not _is_whole(alignment, 1):
            raise party.broke(f"alignment is {shown(alignment)}, not a number of bytes")
        self.alignment = int(alignment)

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        """As `Device.load`.

        Raises:
            StateError, CompileError, DeviceError: as `Device.load`; or the recording is not one.
        """
        found: Recording = self._load("load", plan, guard_bands=guard_bands)
        if self._party.shipped:
            return found
        launches = len(plan.dispatches)
        return checked_recording(found, self._party, plan.inputs, plan.outputs, launches)

    def allocate(self, nbytes: int) -> Buffer | Unsupported:
        """As `Device.allocate`.

        Raises:
            StateError, DeviceError: as there; or what it gave is no buffer.
        """
        found: Buffer = self._party.call("allocate", self.inner.allocate, nbytes)
        if self._party.shipped:
            return found
        return checked_buffer(found, self._party, "allocate", nbytes)

    def import_buffer(self, source: object) -> Buffer | Unsupported:
        """As `Device.import_buffer`.

        Raises:
            StateError, DeviceError: as there; or what it gave is no buffer.
        """
        found: Buffer = self._party.call("import_buffer", self.inner.import_buffer, source)
        if self._party.shipped:
            return found
        return checked_buffer(found, self._party, "import_buffer", 0)

    def source(self, kernel: Kernel) -> str:
        """The text that is compiled for a kernel.

        Raises:
            DeviceError: there is none.
        """
        text = self._party.call("source", self.inner.source, kernel)
        if not isinstance(text, str):
            raise self._party.broke(f"source gave {shown(text)}, not a text")
        return text


class CheckedNodeDevice(_Checked):
    """A `NodeDevice` around another."""

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """Why it cannot run a node. One that fails on the question, or does not answer it,
        cannot."""
        reason = unknown_reason(node.attrs)
        if reason is not None and not offers(self.inner, ForeignOps):
            # Its attributes are none that it could know.
            return Unsupported(reason, ReasonCode.UNSUPPORTED_OP)
        answer = attempt(self.inner.supports, node, ops)
        label = self._party.label
        if isinstance(answer, Failed):
            return Unsupported(f"{label}: supports failed on it: {answer}", ReasonCode.PLUGIN_FAULT)
        if answer is None or (
            isinstance(answer, Unsupported) and isinstance(answer.reason, str) and answer.reason
        ):
            return answer
        return Unsupported(
            f"{label}: supports answered {shown(answer)}, neither None nor an Unsupported with a "
            "reason",
            ReasonCode.PLUGIN_FAULT,
        )

    def infer(self, node: Node) -> Sequence[TensorSpec] | Unsupported:
        """As `tflgpu.contract.device.ForeignOps`; a device that is none has no such operators."""
        label = self._party.label
        if not offers(self.inner, ForeignOps):
            return Unsupported(f"{label} only runs operators that are defined")
        answer = attempt(self.inner.infer, node)
        if isinstance(answer, Failed):
            return Unsupported(f"{label}: infer failed on it: {answer}")
        if isinstance(answer, Unsupported):
            return answer
        if (
            isinstance(answer, (list, tuple))
            and len(answer) == len(node.outputs)
            and all(isinstance(spec, TensorSpec) for spec in answer)
        ):
            return answer
        return Unsupported(f"{label}: infer answered {shown(answer)}, not a spec for each result")

    def register_custom_ops(self, registerers: Sequence[Any]) -> None:
        """As `tflgpu.contract.device.CustomOps`.

        Raises:
            UnsupportedError: the device takes none.
            OptionError: as there.
        """
        if not offers(self.inner, CustomOps):
            raise UnsupportedError(f"{self._party.label} takes no operators in native code")
        self._party.call("register_custom_ops", self.inner.register_custom_ops, registerers)

    def load_nodes(self, run: NodeRun) -> Recording:
        """As `NodeDevice.load_nodes`.

        Raises:
            StateError, DeviceError: as there; or the recording is not one.
        """
        found: Recording = self._load("load_nodes", run)
        if self._party.shipped:
            return found
        return checked_recording(found, self._party, run.inputs, run.outputs)


Checked = Union[CheckedDevice, CheckedNodeDevice]


def checked_device(inner: object, party: PluginCaller, backend: str, index: int) -> Checked:
    """A device that was just opened, checked; it is closed where it is not what it must be.

    Raises:
        DeviceError: names the plugin and what it broke.
    """
    by_nodes = party.call("load_nodes", hasattr, inner, "load_nodes")
    needed = _NODE_DEVICE if by_nodes else _DEVICE
    lacking = party.lacking(inner, needed, ("info", "caps", "alignment"))
    if lacking:
        close_quietly(inner)
        kind = "a NodeDevice" if by_nodes else "a Device"
        raise party.broke(
            f"it opened a {type(inner).__name__}, which is not {kind}: it has no {lacking}"
        )
    try:
        kinds = CheckedNodeDevice if by_nodes else CheckedDevice
        return kinds(inner, party, backend, index)
    except DeviceError:
        close_quietly(inner)
        raise


def unchecked(device: Device | NodeDevice) -> Device | NodeDevice:
    """The device as its backend made it, for tests of just that."""
    inner: Device | NodeDevice = device.inner if isinstance(device, _Checked) else device
    return inner


def close_all(recordings: list[Recording]) -> None:
    """Close every one, also after one of them failed, and take it off the list. Where a signal
    interrupts this, those that are left on the list can be closed by another call. One whose run
    took too long is closed once the device is done with it: here, or when another list is closed.

    Raises:
        TflgpuError: the first that one of them raised.
    """
    first: TflgpuError | None = None
    while recordings:
        try:
            if not is_given_up(recordings[-1]):
                recordings[-1].close()
        except TflgpuError as error:
            first = first or error
        recordings.pop()
    close_what_ended()
    if first is not None:
        raise first


def _info(info: object, party: PluginCaller, backend: str, index: int) -> DeviceInfo:
    if not isinstance(info, DeviceInfo):
        raise party.broke(f"info is {shown(info)}, not a DeviceInfo")
    problem = wrong_info(info, backend)
    if problem is None and info.index != index:
        problem = f"has index {info.index}, and device {index} was opened"
    if problem is not None:
        raise party.broke(f"info {problem}")
    return info


def wrong_info(info: DeviceInfo, backend: str) -> str | None:
    """What is wrong with what a backend says of a device, None where nothing is."""
    if info.backend != backend:
        return f"is of backend {shown(info.backend)}, not {backend}"
    if not _is_whole(info.index, 0):
        return f"has index {shown(info.index)}"
    for name in ("name", "vendor", "driver"):
        if not isinstance(getattr(info, name), str):
            return f"has {name} {shown(getattr(info, name))}, which is no text"
    if info.uuid is not None and (
        not isinstance(info.uuid, str) or read_uuid(info.uuid) != info.uuid
    ):
        return f"has uuid {shown(info.uuid)}, which `tflgpu.contract.device` did not write"
    if not isinstance(info.is_gpu, (bool, np.bool_)):
        return f"has is_gpu {shown(info.is_gpu)}, which is neither True nor False"
    return None


def _caps(caps: object, party: PluginCaller) -> DeviceCaps:
    if not isinstance(caps, DeviceCaps):
        raise party.broke(f"caps is {shown(caps)}, not a DeviceCaps")
    for field in attrs.fields(DeviceCaps):
        value = getattr(caps, field.name)
        if not _fits(value, field.default, field.name):
            raise party.broke(f"caps has {field.name} {shown(value)}")
    return caps


def _fits(value: object, like: object, name: str) -> bool:
    if isinstance(like, bool):
        return isinstance(value, (bool, np.bool_))
    if isinstance(like, int):
        return _is_whole(value, 1 if name.startswith("max_") else 0)
    if isinstance(like, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(like)
            and all(_is_whole(v, 1) for v in value)
        )
    return isinstance(value, str)


def _is_whole(value: object, least: int) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and int(value) >= least  # type: ignore[call-overload]
