"""Reads the shipped profiles, `devices.toml` and `delegates.toml`, by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import attrs

from tflgpu.errors import OptionError
from tflgpu.errors.blame import did_you_mean
from tflgpu.language.caps import DeviceCaps
from tflgpu.profiles.rules import Rule, RuleTable

_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


@attrs.frozen(eq=False)
class Profile:
    """A device or delegate that a model can be checked for without having it.

    Either of a device (``caps``): what tflgpu would give it, by its own kernels; or of another
    delegate (``rules``): what that would take, by its own checks.

    Attributes:
        name: As commands take it, such as "adreno-740".
        title: For people.
        apis: Backends that reach such a device, the one that is judged by first; none for another
            delegate's rules.
        caps: What the device has at least. What is not known of it is what every device of the API
            has, so that what is said to be delegated is delegated.
        rules: What another delegate takes.
        sources: Where that is documented.
        notes: What to know besides.

    Raises:
        OptionError: it has both or neither of caps and rules, or no sources, or a name that no
            command line would take.
    """

    name: str
    title: str
    apis: tuple[str, ...] = ()
    caps: DeviceCaps | None = None
    rules: RuleTable | None = None
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Check what a typing mistake would turn into a wrong answer."""
        if _NAME.fullmatch(self.name) is None:
            raise OptionError(f"a profile's name is of small letters and digits, not {self.name!r}")
        if (self.caps is None) is (self.rules is None):
            raise OptionError(f"profile {self.name} has either the caps of a device or rules")
        if self.caps is not None and not self.apis:
            raise OptionError(f"profile {self.name} has caps but no API")
        if not self.sources:
            raise OptionError(f"profile {self.name} has no source")


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LIMITS = (
    "The rules are those of its source; whether a driver then compiles the graph is not known here"
)


@cache
def every() -> tuple[Profile, ...]:
    """The profiles: of devices, then those of other delegates."""
    devices, delegates = _read("devices.toml"), _read("delegates.toml")
    found = [
        _device(row, model, devices)
        for row in devices["devices"]
        for model in row.get("models", [""])
    ]
    for name, row in delegates.items():
        rules = rule_table(name)
        notes = (*row["notes"], _LIMITS)
        found.append(Profile(name, row["title"], rules=rules, sources=rules.sources, notes=notes))
    return tuple(found)


@cache
def phones() -> Mapping[str, tuple[str, str]]:
    """The profile of the GPU that a phone or board has, and where that is said, by the phone's
    name."""
    return {name: (gpu, source) for name, (gpu, source) in _read("devices.toml")["phones"].items()}


def get(name: str) -> Profile:
    """A profile by its name, or by that of a phone which has such a GPU.

    Raises:
        OptionError: there is none of the name; says which there are.
    """
    known = {profile.name: profile for profile in every()}
    name = name.strip().lower()
    found = known.get(phones().get(name, (name,))[0])
    if found is None:
        meant = did_you_mean(name, [*known, *phones()])
        raise OptionError(f"there is no profile {name!r}{meant}; there are {', '.join(known)}")
    return found


def _device(row: Mapping[str, Any], model: str, tables: Mapping[str, Any]) -> Profile:
    """A profile of `devices.toml`, or one of several that differ by their ``model`` only."""
    caps: dict[str, Any] = {}
    for base in row.get("like", ()):
        caps |= tables["caps"][base]
    caps |= row.get("caps", {})
    caps = {key: tuple(v) if isinstance(v, list) else v for key, v in caps.items()}
    return Profile(
        row["name"].format(model),
        row["title"].format(model.upper()),
        tuple(row["apis"]),
        DeviceCaps(**caps),
        sources=tuple(tables["sources"][source] for source in row["sources"]),
        notes=tuple(tables["notes"].get(note, note) for note in row["notes"]),
    )


@cache
def rule_table(name: str) -> RuleTable:
    """A delegate's rules, by the name of its profile."""
    given = _read("delegates.toml")
    row = given[name]
    base = given[row["extends"]] if "extends" in row else {}
    rules = _changed(rule_table(row["extends"]).rules, row) if base else {}
    for rule in row["rules"]:
        for op in rule["ops"]:
            if op in rules:
                raise ValueError(f"there are two rules for {op}")
            rules[op] = rule
    general = {
        key: row.get(key, base.get(key))
        for key in (
            "max_rank",
            "types",
            "quantized_types",
            "activations",
            "half_constants",
            "max_partitions",
        )
    }
    sources = (*row["sources"], *base.get("sources", ()))
    return RuleTable(rules=rules, dropped=row.get("drop", {}), sources=sources, **general)


def _changed(rules: Mapping[str, Rule], row: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules that a table inherits from the one that it extends, with its changes."""
    found: dict[str, Rule] = {}
    for op, rule in rules.items():
        if op not in row["drop"]:
            kept = {key: value for key, value in rule.items() if key not in row["without"]}
            version = {"version": row["versions"][op]} if op in row["versions"] else {}
            found[op] = {**kept, **version, **row["changes"].get(op, {})}
    return found


@cache
def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))
    return content
