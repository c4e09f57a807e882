"""`tflgpu devices`: the devices, what is missing for others, and which one would be used."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import attrs
import typer

from tflgpu.cli import console
from tflgpu.cli.install import how_to_enable, what_is_missing
from tflgpu.contract.device import UUID, DeviceInfo
from tflgpu.devices.choose import Choice, default_choice
from tflgpu.devices.cpu_side import REFERENCES, CpuSide
from tflgpu.devices.device_states import DeviceState, opened_state
from tflgpu.errors import TflgpuError
from tflgpu.interpreter.gpu_delegate import VARIABLE, is_switched_on
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry, registry
from tflgpu.plugins.sources import Plugin

#: Seconds from which on the import of a plugin is worth a word.
_SLOW_IMPORT = 1.0


def _f16(caps: DeviceCaps | None) -> str:
    """How a device computes with 16-bit floats."""
    if caps is None:
        return ""
    if caps.f16_arithmetic:
        return "arithmetic"
    return "storage" if caps.f16_storage else "no"


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
) -> None:
    """List devices, what is missing, what GpuDelegate() would choose, and what runs the rest."""
    known = registry()
    with console.working("looking for devices"):
        found = {name: _devices(known, name) for name in known.backends}
        choice = default_choice(known)
        cpu = _cpu_side(known)
    device, reasons = choice.device, choice.reasons
    if as_json:
        console.show_json(
            _as_json(known, found, choice)
            | {"cpu_side": attrs.asdict(cpu), "default": attrs.asdict(_default(choice))}
        )
        return
    _show_devices(found, device)
    _show_uuids(found)
    _show_missing(known)
    for failure in known.failures:
        console.warn(str(failure))
    for plugin in _slow(known):
        console.warn(
            f"plugin {plugin} took {plugin.seconds:.1f} s to import; it should import its driver "
            "when a device is opened"
        )
    chosen = f"{device.backend} device {device.index}, {device.name}" if device else "none"
    console.say(f"GpuDelegate() would choose: {chosen}")
    for reason in reasons:
        console.say(f"  {reason}")
    default = _default(choice)
    used = "that one" if default.uses_device else "none"
    because = f" ({default.because})" if default.because else ""
    console.say(f"Interpreter(), where no delegate is given, would use: {used}{because}")
    console.say(f"what a device leaves runs on the CPU by: {cpu.name or 'nothing'}")
    for reason in cpu.reasons:
        console.say(f"  {reason}")


@attrs.frozen
class _CpuSide:
    """The CPU side that runs the other operators; without a name where the one that was asked for
    cannot.

    Attributes:
        backend: The backend's name.
        name: For people, with the version.
        reasons: What something faster lacks, and what brings it.
    """

    backend: str
    name: str
    reasons: tuple[str, ...] = ()


def _cpu_side(known: Registry) -> _CpuSide:
    try:
        with closing(CpuSide(known, DelegateOptions())) as side:
            device = side.device
            if device is not None:
                return _CpuSide(device.info.backend, side.name)
            return _CpuSide(REFERENCES, "the NumPy references, which are slow", side.lacking)
    except TflgpuError as error:  # TFLGPU_CPU_BACKEND asks for one that is not there
        return _CpuSide("", "", (str(error),))


@attrs.frozen
class _Default:
    """Whether a model for which no delegate is named has the chosen device, and why not."""

    uses_device: bool
    because: str = ""


def _default(choice: Choice) -> _Default:
    try:
        if not is_switched_on():
            return _Default(False, f"{VARIABLE} switches it off")
    except TflgpuError as error:
        return _Default(False, str(error))
    if choice.device is None:
        return _Default(False)
    if choice.explicit or choice.judgement.is_gpu(choice.device):
        return _Default(True)
    return _Default(False, "it is no GPU, and would compute in the place of the CPU side")


def _slow(known: Registry) -> list[Plugin]:
    """Plugins that every program waits for."""
    return [p for p in known.plugins if p.seconds > _SLOW_IMPORT]


def _devices(known: Registry, backend: str) -> list[DeviceState]:
    probe = known.probe(backend, refresh=True)
    return [opened_state(known, info) for info in probe.devices] if probe.available else []


def _show_devices(found: dict[str, list[DeviceState]], chosen: DeviceInfo | None) -> None:
    table = console.table(
        "Devices",
        "",
        "backend",
        "index",
        "name",
        "driver",
        "GPU",
        "f16",
        "state",
        right=("index",),
        whole=("backend", "f16"),
    )
    for devices_of_one in found.values():
        for device in devices_of_one:
            info = device.info
            mark = "*" if info == chosen else ""
            gpu = "yes" if info.is_gpu else "no"
            state = device.reason or "ok"
            table.add_row(
                mark,
                info.backend,
                str(info.index),
                info.name,
                info.driver,
                gpu,
                _f16(device.caps),
                state,
            )
    console.show(table)


def _show_uuids(found: dict[str, list[DeviceState]]) -> None:
    """Lines, since a column of UUIDs would leave a terminal no room for names."""
    known = [d.info for devices in found.values() for d in devices if d.info.uuid is not None]
    for info in known:
        console.say(f"{info.backend} device {info.index} is {UUID}{info.uuid}")
    if known:
        console.say("")


def _show_missing(known: Registry) -> None:
    lines = list(what_is_missing(known))
    for line in lines:
        console.say(line)
    if lines:
        console.say("")


def _as_json(
    known: Registry,
    found: dict[str, list[DeviceState]],
    choice: Choice,
) -> dict[str, Any]:
    chosen = choice.device
    backends = []
    for name, info in known.backends.items():
        probe = known.probe(name)
        entry: dict[str, Any] = {
            "name": name,
            "distribution": known.distribution(name),
            "rank": info.rank,
            "available": probe.available,
            "devices": [_device_json(d) for d in found[name]],
        }
        if not probe.available:
            entry |= {"reason": probe.reason, "fix": how_to_enable(known, info)}
        backends.append(entry)
    return {
        "backends": backends,
        "failed_plugins": [attrs.asdict(f) for f in known.failures],
        "slow_plugins": [
            {"name": p.name, "distribution": p.distribution, "import_seconds": p.seconds}
            for p in _slow(known)
        ],
        "chosen": None if chosen is None else attrs.asdict(chosen),
        "reasons": list(choice.reasons),
    }


def _device_json(device: DeviceState) -> dict[str, Any]:
    entry = attrs.asdict(device.info)
    entry["caps"] = None if device.caps is None else attrs.asdict(device.caps)
    if device.reason:
        entry["problem"] = device.reason
    return entry
