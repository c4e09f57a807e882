"""What plugins hand over, held against what it must be: field by field, since attrs checks none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pluggy

from tflgpu.blame import Refused, shown
from tflgpu.compat.entry import CompatEntry, Verdict
from tflgpu.contract.allowances import Allowances
from tflgpu.contract.checked import wrong_info
from tflgpu.contract.device import API_CHANGES, API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.language.generator import ShaderGenerator
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule
from tflgpu.ops.base import Accuracy, Activation, Composed, OpDef
from tflgpu.ops.facets import Filter, Held, Integers
from tflgpu.passes.base import Pass

#: What each field has to be, by the type that is registered.
_TEXTS: Mapping[type, tuple[str, ...]] = {
    BackendInfo: ("name",),
    OpDef: ("name",),
    Pass: ("name",),
    ShaderGenerator: ("name",),
    KernelRule: ("op", "name"),
    ElementwiseRule: ("op",),
    GroupRule: ("op", "name"),
    CompatEntry: ("name", "reason"),
}
_WHOLE: Mapping[type, tuple[str, ...]] = {
    BackendInfo: ("rank",),
    OpDef: ("max_version",),
    Pass: ("phase",),
    ShaderGenerator: (),
    KernelRule: ("rank",),
    ElementwiseRule: (),
    GroupRule: ("rank",),
    CompatEntry: ("rank",),
}
_FUNCTIONS: Mapping[type, tuple[str, ...]] = {
    BackendInfo: (),
    OpDef: ("parse", "infer", "reference", "samples", "limits"),
    Pass: ("run",),
    ShaderGenerator: ("source",),
    KernelRule: ("build", "accepts"),
    ElementwiseRule: ("expr", "accepts"),
    GroupRule: ("match", "build"),
    CompatEntry: (),
}

_FLAGS = ("elementwise", "is_custom", "stateful", "is_view", "shape_only", "keeps_values",
          "takes_stored", "texts", "one_scale")  # fmt: skip
#: Functions of an op that it need not have.
_FACETS = ("generate", "affine", "moves", "copies", "reorder", "work", "states", "at_run_time",
           "int16_table", "stored_where", "as_stored", "hybrid", "batch")  # fmt: skip
_POSITIONS = ("counts", "settings", "indices", "checked")


def ask(
    hook: pluggy.HookCaller, kinds: tuple[type, ...], arguments: Mapping[str, object], to: list[Any]
) -> None:
    """Call a registration hook and append what it lists to ``to``, checked."""
    wanted = " or ".join(k.__name__ for k in kinds)
    answers = hook(**arguments)
    if not answers and not arguments:
        # A hook that is asked of one backend may have nothing to say of it.
        raise Refused(f"{hook.name} gave None, not a list of {wanted}")
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            raise Refused(f"{hook.name} gave {type(answer).__name__}, not a list of {wanted}")
        for item in answer:
            if not isinstance(item, kinds):
                raise Refused(f"{hook.name} gave a {type(item).__name__}, not a {wanted}")
            _check(item)
        to.extend(answer)


def _check(item: Any) -> None:
    """Look at one item of a registration hook's list.

    Raises:
        Refused: a field is not what it must be; names the item and the field.
    """
    kind = next(k for k in _TEXTS if isinstance(item, k))
    what = f"{kind.__name__} {shown(getattr(item, 'name', getattr(item, 'op', '')))}"

    def fail(field: str, wanted: str) -> None:
        raise Refused(f"{what}: {field} is {shown(getattr(item, field))}, not {wanted}")

    if isinstance(item, BackendInfo) and item.api_version != API_VERSION:
        raise Refused(_other_version(item))
    for field in _TEXTS[kind]:
        value = getattr(item, field)
        if not isinstance(value, str) or not value:
            fail(field, "a name")
    for field in _WHOLE[kind]:
        value = getattr(item, field)
        if isinstance(value, bool) or not isinstance(value, int):
            fail(field, "a whole number")
    for field in _FUNCTIONS[kind]:
        if not callable(getattr(item, field)):
            fail(field, "a function")
    if isinstance(item, BackendInfo):
        requires = item.requires
        if not isinstance(requires, (tuple, list)) or not all(
            isinstance(name, str) for name in requires
        ):
            fail("requires", "a tuple of import names")
        rank = item.cpu_rank
        if isinstance(rank, bool) or not (rank is None or isinstance(rank, int)):
            fail("cpu_rank", "a whole number or None")
        for field in ("extra", "system_hint"):
            if not isinstance(getattr(item, field), str):
                fail(field, "a text")
    if isinstance(item, CompatEntry):
        for field in ("source", "backend", "vendor", "system"):
            if not isinstance(getattr(item, field), str):
                fail(field, "a text")
        if item.verdict is not None and not isinstance(item.verdict, Verdict):
            fail("verdict", "a Verdict or None")
    for field in ("fuses", "keeps_state"):
        if not isinstance(getattr(item, field, True), bool):
            fail(field, "True or False")
    if isinstance(item, (KernelRule, GroupRule)) and item.name == "elementwise":
        fail("name", "one for a KernelRule: it is the name of what an ElementwiseRule becomes")
    if isinstance(item, Pass) and not _takes(item.run, 2):
        raise Refused(
            f"{what}: run does not take two arguments; a pass is called with the graph and a "
            "`PassContext` (tflgpu.passes.context), which has the ops and the device's capabilities"
        )
    if isinstance(item, OpDef):
        _check_op(item, fail)


def _check_op(op: OpDef, fail: Callable[[str, str], None]) -> None:
    if not isinstance(op.accuracy, Accuracy):
        fail("accuracy", "an Accuracy")
    if op.max_version < 1:
        fail("max_version", "a version: 1 or more")
    for field in _FACETS:
        if getattr(op, field) is not None and not callable(getattr(op, field)):
            fail(field, "a function or None")
    for field in _FLAGS:
        if not isinstance(getattr(op, field), bool):
            fail(field, "True or False")
    for field in _POSITIONS:
        if not _are_positions(getattr(op, field)):
            fail(field, "a tuple of positions of operands")
    for field in ("activation_field", "positions"):
        if not isinstance(getattr(op, field), str):
            fail(field, "the name of an attribute")
    if not isinstance(op.computes, Activation):
        fail("computes", "an Activation")
    if not isinstance(op.held, Held):
        fail("held", "a Held")
    largest = op.largest_operand
    if isinstance(largest, bool) or not isinstance(largest, (int, float)) or not largest > 0:
        fail("largest_operand", "a positive number")
    if not isinstance(op.composed, tuple) or not all(
        isinstance(each, Composed) and callable(each.read) for each in op.composed
    ):
        fail("composed", "a tuple of Composed, each with a function to read it")
    if op.states is not None and not op.stateful:
        fail("states", "None, as it must be of an op that is not stateful")
    if op.integers is not None and not (
        isinstance(op.integers, Integers)
        and isinstance(op.integers.op, str)
        and callable(op.integers.attributes)
        and op.takes_stored
    ):
        fail("integers", "an Integers of an op's name and a function, with takes_stored, or None")
    _check_filter(op, fail)


def _are_positions(found: object) -> bool:
    return isinstance(found, tuple) and all(
        isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in found
    )


def _check_filter(op: OpDef, fail: Callable[[str, str], None]) -> None:
    kind = op.filter
    if kind is None:
        return
    if not isinstance(kind, Filter) or not isinstance(kind.pads, str):
        fail("filter", "a Filter or None")
        return
    positions = (kind.source, kind.weights, kind.bias, kind.out)
    if any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in positions):
        fail("filter", "a Filter of positions")
    if any(f is not None and not callable(f) for f in (kind.spread, kind.zeros)):
        fail("filter", "a Filter whose spread and zeros are functions or None")


def _takes(function: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it says."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # written in C, say; what a call raises has the plugin's name too
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


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
