"""Checks the values that plugins return field by field, since attrs checks none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from tflgpu.checks.device import wrong_info
from tflgpu.compat.entry import CompatEntry, Verdict
from tflgpu.contract.buffers import MemoryKind
from tflgpu.contract.device import (
    API_CHANGES,
    API_VERSION,
    Allowances,
    BackendInfo,
    DeviceInfo,
    Probe,
)
from tflgpu.errors.blame import FieldRule, Refused, check_fields, is_name, is_text, is_whole, shown
from tflgpu.language.generator import ShaderGenerator

#: What the fields of a value have to be, by its type.
_FIELDS: Mapping[type, Sequence[FieldRule]] = {
    BackendInfo: (
        (("name",), "a name", is_name),
        (("rank",), "a whole number", is_whole),
        (
            ("requires",),
            "a tuple of import names",
            lambda value: isinstance(value, (tuple, list)) and all(map(is_text, value)),
        ),
        (("cpu_rank",), "a whole number or None", lambda value: value is None or is_whole(value)),
        (("extra", "system_hint"), "a text", is_text),
    ),
    ShaderGenerator: ((("name",), "a name", is_name), (("source",), "a function", callable)),
    MemoryKind: ((("name",), "a name", is_name), (("find",), "a function", callable)),
    CompatEntry: (
        (("name", "reason"), "a name", is_name),
        (("rank",), "a whole number", is_whole),
        (("source", "backend", "vendor", "system"), "a text", is_text),
        (
            ("verdict",),
            "a Verdict or None",
            lambda value: value is None or isinstance(value, Verdict),
        ),
    ),
}


#: Gives the types that a hook may list. They are only asked for where a plugin has the hook.
Kinds = Callable[[], tuple[type, ...]]


def plugin_ops() -> ModuleType:
    """`tflgpu.plugins.ops`, which most plugins do not need, and which takes long to import."""
    from tflgpu.plugins import ops as found

    return found


def ask(
    hook: pluggy.HookCaller, wanted: Kinds, arguments: Mapping[str, object], to: list[Any]
) -> None:
    """Call a registration hook and append what it lists to ``to``, checked."""
    kinds = wanted()
    names = " or ".join(k.__name__ for k in kinds)
    answers = hook(**arguments)
    if not answers and not arguments:
        # A hook that is asked of one backend may have nothing to say of it.
        raise Refused(f"{hook.name} gave None, not a list of {names}")
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            raise Refused(f"{hook.name} gave {type(answer).__name__}, not a list of {names}")
        for item in answer:
            if not isinstance(item, kinds):
                raise Refused(f"{hook.name} gave a {type(item).__name__}, not a {names}")
            _check(item)
        to.extend(answer)
    if not set(kinds).issubset(_FIELDS):
        plugin_ops().refuse_equal_rules(to)


def _check(item: Any) -> None:
    """Look at one item of a registration hook's list.

    Raises:
        Refused: a field is not what it must be; names the item and the field.
    """
    fields = _FIELDS if isinstance(item, tuple(_FIELDS)) else plugin_ops().FIELDS
    kind = next(k for k in fields if isinstance(item, k))
    what = f"{kind.__name__} {shown(getattr(item, 'name', getattr(item, 'op', '')))}"
    if isinstance(item, BackendInfo) and item.api_version != API_VERSION:
        raise Refused(_other_version(item))
    check_fields(item, fields[kind], what)
    if fields is not _FIELDS:
        plugin_ops().check(item, what)


def _other_version(info: BackendInfo) -> str:
    """Why a backend of another version of the contract is not used, and what to do."""
    version = info.api_version
    said = f"backend {info.name} is written for API version {shown(version)}"
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        return f"{said}, which there never was; this tflgpu has {API_VERSION}"
    if version > API_VERSION:
        return f"{said}, and this tflgpu has {API_VERSION}: upgrade tflgpu"
    lacks = "; ".join(text for since, text in API_CHANGES.items() if since > version)
    return (
        f"{said}, and this tflgpu has {API_VERSION}: {lacks}. Upgrade the plugin, or install the "
        f"tflgpu that it was written for"
    )


def wrong_probe(probe: object, backend: str) -> str | None:
    """What is wrong with the answer to ``tflgpu_probe``, None where nothing is."""
    if not isinstance(probe, Probe):
        return f"answered its probe with {shown(probe)}"
    if not isinstance(probe.available, bool):
        return f"answered its probe with available {shown(probe.available)}"
    if not isinstance(probe.reason, str):
        return f"answered its probe with the reason {shown(probe.reason)}, which is no text"
    if not isinstance(probe.devices, (tuple, list)):
        return f"answered its probe with devices {shown(probe.devices)}, which is no tuple"
    indices = set()
    for device in probe.devices:
        if not isinstance(device, DeviceInfo):
            return f"answered its probe with {shown(device)} for a device, not a DeviceInfo"
        problem = wrong_info(device, backend)
        if problem is not None:
            return f"answered its probe with a device that {problem}"
        if device.index in indices:
            return f"answered its probe with two devices of index {device.index}"
        indices.add(device.index)
    return None


def wrong_allowances(answer: object) -> str | None:
    """What is wrong with the answer to ``tflgpu_conformance_allowances``, None where nothing is."""
    if answer is None:
        return None
    if not isinstance(answer, Allowances):
        return f"answered {shown(answer)}, not Allowances or None"
    if answer.expectations is not None and not isinstance(answer.expectations, Path):
        return f"answered Allowances with expectations {shown(answer.expectations)}, not a Path"
    return None
