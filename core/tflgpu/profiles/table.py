"""The shipped profiles, by name."""

from __future__ import annotations

import difflib
from functools import cache

from tflgpu.errors import OptionError
from tflgpu.profiles.hardware import DEVICES
from tflgpu.profiles.profile import Profile
from tflgpu.profiles.rules import RuleTable, table

_LIMITS = (
    "The rules are those of its source; whether a driver then compiles the graph is not known here"
)


def _delegate(name: str, title: str, rules: RuleTable, *notes: str) -> Profile:
    return Profile(name, title, rules=rules, sources=rules.sources, notes=(*notes, _LIMITS))


@cache
def _delegates() -> tuple[Profile, ...]:
    return (
        _delegate(
            "tflite-gpu",
            "TFLite's GPU delegate (V2)",
            table("tflite_gpu.json"),
            "OpenCL and OpenGL are asked by the same rules, though OpenGL has fewer kernels",
        ),
        _delegate(
            "litert-gpu",
            "LiteRT's GPU accelerator (ML Drift)",
            table("litert_gpu.json"),
            "Where the source says nothing else of an op, TFLite's GPU delegate's checks are meant",
        ),
    )


def every() -> tuple[Profile, ...]:
    """The profiles: of devices, then those of other delegates."""
    return (*DEVICES, *_delegates())


def get(name: str) -> Profile:
    """A profile by its name.

    Raises:
        OptionError: there is none of the name; says which there are.
    """
    known = {profile.name: profile for profile in every()}
    found = known.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"there is no profile {name!r}{hint} (there are {', '.join(known)})")
    return found
