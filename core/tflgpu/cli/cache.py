"""`tflgpu cache`: lists and clears what is kept on disk: compiled models and the other stores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cache.disk_cache import StoredFile, file_fault, stored
from tflgpu.cli import console
from tflgpu.errors import OptionError, SavedModelError
from tflgpu.saved.location import FOLDER, LIMIT, default_folder, drop, entries, fault, prune
from tflgpu.saved.model import SUFFIX, checked, name_in
from tflgpu.saved.source import FILE

#: The exit code where something is wrong with a file.
FAULTY = 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def _is_folder(folder: Path | None) -> Path | None:
    """The default one need not be there yet; a mistyped one must not pass for one that is in
    order."""
    if folder is not None and not folder.is_dir():
        raise OptionError(f"--folder {folder}: there is no such folder")
    return folder


Folder = Annotated[
    Path | None,
    typer.Option(
        callback=_is_folder,
        help="A folder of compiled models only. Default: everything in TFLGPU_CACHE_DIR, or in "
        "the user's cache folder.",
    ),
]

cache = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="What is kept on disk: compiled models, drivers' programs, measurements.",
)


@cache.command("ls")
def show(folder: Folder = None) -> None:
    """List it: size, time since the last use, what for."""
    place = folder or default_folder()
    found = entries(place)
    table = console.table(
        str(place),
        "model",
        "file",
        "size",
        "unused for",
        "device",
        "inputs",
        right=("size", "unused for"),
    )
    for entry in found:
        try:
            content, key = checked(entry.path)
            facts, name = dict(key.facts), name_in(content.index)
            where = f"{facts.get('backend', '?')}: {facts.get('device', '?')}"
            inputs = facts.get("inputs") or _started(facts)
        except SavedModelError as error:
            where, inputs, name = f"not usable: {error}", "", ""
        size, age = _size(entry.nbytes), _age(entry.age)
        table.add_row(name, entry.path.name[:12], size, age, where, inputs)
    console.show(table)
    console.say(f"{len(found)} models, {_size(sum(entry.nbytes for entry in found))}")
    others = _others(folder)
    for store in sorted({each.path.parent for each in others}):
        inside = [each for each in others if each.path.parent == store]
        size = _size(sum(each.nbytes for each in inside))
        console.say(
            f"{len(inside)} entries of {store.name}, {size}, used {_age(inside[0].age)} ago"
        )


@cache.command()
def verify(folder: Folder = None) -> None:
    """Read every file whole: is it undamaged, and what its name says? Ends with 1 if not."""
    found, others = entries(folder or default_folder()), _others(folder)
    reasons = [(entry.path, fault(entry.path)) for entry in found]
    reasons += [(each.path, file_fault(each.path)) for each in others]
    faulty = [(path, reason) for path, reason in reasons if reason]
    for path, reason in faulty:
        console.say(f"{path}: {reason}")
    more = f" and {len(others)} other entries" if others else ""
    console.say(f"{len(found)} models{more}, {len(faulty)} of them faulty")
    if faulty:
        raise typer.Exit(FAULTY)


@cache.command("prune")
def shrink(
    limit: Annotated[
        str, typer.Option(help="Bytes that may stay, as 500M or 2G.")
    ] = f"{LIMIT >> 30}G",
    folder: Folder = None,
) -> None:
    """Remove what was not used for longest, until the others are within a limit."""
    most, place = _bytes(limit), folder or default_folder()
    found: list[StoredFile] = [*entries(place), *_others(folder)]
    total = sum(each.nbytes for each in found)
    gone: list[StoredFile] = []
    for each in sorted(found, key=lambda each: -each.age):
        if total > most and drop(each.path):
            total -= each.nbytes
            gone.append(each)
    prune(place, most)  # what processes that died have left
    _removed(gone)


@cache.command()
def clear(folder: Folder = None) -> None:
    """Remove all of it."""
    found: list[StoredFile] = [*entries(folder or default_folder()), *_others(folder)]
    _removed([each for each in found if drop(each.path)])


def _others(folder: Path | None) -> list[StoredFile]:
    """Files of the other stores in the default cache folder; none where a folder is given."""
    return [] if folder is not None else stored(default_folder().parent, besides=FOLDER)


def _started(facts: Mapping[str, str]) -> str:
    """The name of a start: the digest of its model's file, and resized inputs."""
    resized = facts.get("resized", "{}")
    name = f"file {facts.get(FILE, '?')[:12]}"
    return name if resized == "{}" else f"{name}, resized {resized}"


def _removed(gone: Sequence[StoredFile]) -> None:
    models = [each for each in gone if each.path.name.endswith(SUFFIX)]
    more = f" and {len(gone) - len(models)} other entries" if len(gone) > len(models) else ""
    size = _size(sum(each.nbytes for each in gone))
    console.say(f"{len(models)} models{more} removed, {size}")


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise OptionError(
            f"--limit {text!r} is no size; sizes are as 500M, 2G or a number of bytes"
        )
    return int(found[1]) * _UNITS[found[2].upper()]


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def _age(seconds: float) -> str:
    for length, name in _SPANS:
        if seconds >= length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"
