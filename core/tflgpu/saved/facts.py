"""Facts about what compiles: options, registered plugins, versions, and digests of all sources.

In a folder of compiled models a version alone is not enough, since it stays the same while the
code is being edited; nor is the time of a file, since one version is installed at many times. A
file that a user has made outlives patch releases: of tflgpu the first two numbers of its version
count there, and those of NumPy and Python do not.

With a graph at hand the key asks the target that it is compiled for. Making that takes importing
every op, pass and rule. What decides it is less: options, the device, versions of code, and what
plugins have registered, which may depend on more than their code.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

import attrs
import numpy as np

from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import SavedModelError
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import LANGUAGE_VERSION
from tflgpu.options import DelegateOptions
from tflgpu.plugins.hookspecs import PROJECT
from tflgpu.plugins.installed import version
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin
from tflgpu.saved.key import op_text, pass_text, rule_text
from tflgpu.saved.source import Facts
from tflgpu.saved.stamps import stamp

#: The distribution that brings the shipped backends too.
_NAME = "tflgpu"
#: Options that only say where files lie, and which of several devices is meant: what the device is
#: stands in the key by itself, so that workers with equal GPUs compile once.
_PLACES = frozenset({"serialization_dir", "model_token", "enable_serialization", "device"})


def facts_of(
    device: DeviceInfo, caps: DeviceCaps, plugins: Iterable[Plugin], *, lasting: bool = False
) -> Facts:
    """All that a compiled graph depends on besides graph and target. With ``lasting`` a patch
    release of tflgpu changes nothing.

    Raises:
        SavedModelError: the sources of a plugin are not to be found, so that their changes would go
            unnoticed.
    """
    named = [
        ("backend", device.backend),
        ("device", device.name),
        ("vendor", device.vendor),
        ("driver", device.driver),
        # All of them: the target has those that are used, and a printer may ask for others.
        ("capabilities", repr(caps)),
        *(_release() if lasting else _own()),
    ]
    told = [p for p in plugins if not (lasting and p.distribution == _NAME)]
    named += [(f"plugin {plugin}", _plugin_text(plugin)) for plugin in told]
    return tuple(named)


def _release() -> Facts:
    release = ".".join(_version(_NAME).split(".")[:2])
    return (("tflgpu", release), ("language", str(LANGUAGE_VERSION)))


@cache
def _own() -> Facts:
    root = Path(__file__).resolve().parents[1]
    return (
        ("tflgpu", f"{_version(_NAME)} {_stamp(root)}"),
        ("language", str(LANGUAGE_VERSION)),
        ("python", ".".join(platform.python_version_tuple()[:2])),
        ("numpy", np.__version__),
    )


def _plugin_text(plugin: Plugin) -> str:
    return " ".join([_version(plugin.distribution), *map(_stamp, _homes(plugin))])


def _homes(plugin: Plugin) -> list[Path]:
    """The folders of a plugin's packages, or the files of its modules: of its own, and of those
    that its hooks come from. An object's hooks, and its class, may come from another package."""
    target = plugin.target
    hooks = [getattr(target, n) for n in dir(target) if n.startswith(f"{PROJECT}_")]
    names = {getattr(hook, "__module__", None) for hook in hooks}
    names.add(target.__name__ if isinstance(target, ModuleType) else type(target).__module__)
    packages = {name.partition(".")[0] for name in names if isinstance(name, str)}
    homes: list[Path] = []
    for name in sorted(packages - sys.stdlib_module_names):
        package = sys.modules.get(name)
        found = getattr(package, "__path__", None) or [getattr(package, "__file__", None)]
        (path, *others) = list(found)
        if path is None or others:
            homes.clear()
            break
        homes.append(Path(path))
    if not homes:
        raise SavedModelError(
            f"plugin {plugin} has no folder of its own, so that it cannot be told when it changes; "
            "nothing that it takes part in can be saved"
        )
    return homes


@cache
def _version(distribution: str) -> str:
    return version(distribution) or ""


def _stamp(place: Path) -> str:
    try:
        return stamp(place)
    except OSError as error:
        raise SavedModelError(
            f"{place} cannot be read, so that it cannot be told when it changes: {error}; "
            "nothing that it takes part in can be saved"
        ) from error


def facts_of_options(options: DelegateOptions) -> Facts:
    """Every option but those of places counts, so that a new option is part of the key without an
    edit here."""
    return tuple(
        (f"option {field.name}", repr(getattr(options, field.name)))
        for field in attrs.fields(DelegateOptions)
        if field.name not in _PLACES
    )


def facts_of_registry(known: Registry, backend: str) -> Facts:
    """Facts about a backend's ops, passes and rules of plugins, in the order in which they
    apply."""
    said = {
        "ops": sorted(map(op_text, known.own_ops.values())),
        "passes": [pass_text(each) for each in known.passes()],
        "rules": [rule_text(rule) for rule in known.rules(backend)],
    }
    return tuple((f"plugins' {what}", ", ".join(texts)) for what, texts in said.items())
