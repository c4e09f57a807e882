"""`tflgpu profiles`: devices and delegates that a model can be checked for without having them."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import typer

from tflgpu.cli import console
from tflgpu.profiles.table import Profile, every, phones


def _list(name: str | None) -> str | None:
    if name == "list":
        show_profiles()
        raise typer.Exit
    return name


ProfileName = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="PROFILE",
        help="Judge without the device: adreno-740, pixel-8, tflite-gpu, ...; list shows them.",
        is_eager=True,  # before the model, which a list needs none of
        callback=_list,
    ),
]


def profiles(
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
) -> None:
    """List what `tflgpu inspect MODEL --as NAME`, and `check`, can judge by."""
    if as_json:
        console.show_json([_as_json(profile) for profile in every()])
        return
    show_profiles()


def show_profiles() -> None:
    """A table of the profiles."""
    table = console.table(
        "Profiles",
        "name",
        "what",
        "by",
        "f16",
        "work group",
        "shared KiB",
        "buffers",
        "sources",
        right=("work group", "shared KiB", "buffers"),
        whole=("name", "f16"),
    )
    sources = tuple(dict.fromkeys(source for profile in every() for source in profile.sources))
    for profile in every():
        numbers = " ".join(str(sources.index(source) + 1) for source in profile.sources)
        table.add_row(profile.name, profile.title, *_limits(profile), numbers)
    console.show(table)
    for number, source in enumerate(sources, 1):
        console.say(f"{number:2} {source}")
    for name, (gpu, source) in phones().items():
        console.say(f"{name} is {gpu}: {source}")
    console.say("tflgpu inspect MODEL --as NAME says what would be delegated there, and why not")


def _limits(profile: Profile) -> tuple[str, ...]:
    caps = profile.caps
    if caps is None:
        return "its own rules", "", "", "", ""
    f16 = "arithmetic" if caps.f16_arithmetic else "storage" if caps.f16_storage else "no"
    shared = str(caps.shared_bytes // 1024)
    return profile.apis[0], f16, str(caps.max_workgroup), shared, str(caps.max_bindings)


def _as_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "title": profile.title,
        "apis": list(profile.apis),
        "caps": None if profile.caps is None else attrs.asdict(profile.caps),
        "ops": None if profile.rules is None else sorted(profile.rules.rules),
        "sources": list(profile.sources),
        "notes": list(profile.notes),
    }
