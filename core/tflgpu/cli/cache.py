"""`tflgpu cache`: the compiled models that are kept on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cli import console
from tflgpu.errors import OptionError, SavedModelError
from tflgpu.saved.model import checked
from tflgpu.saved.store import LIMIT, Entry, default_folder, drop, entries, fault, prune

#: The exit code where something is wrong with a file.
FAULTY = 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))

Folder = Annotated[
    Path | None,
    typer.Option(help="Default: models in TFLGPU_CACHE_DIR, or in the user's cache folder."),
]

cache = typer.Typer(no_args_is_help=True, help="The compiled models that are kept on disk.")


@cache.command("ls")
def show(folder: Folder = None) -> None:
    """List them: size, time since the last use, what for."""
    place = folder or default_folder()
    found = entries(place)
    table = console.table(
        str(place), "file", "size", "unused for", "device", "inputs", right=("size", "unused for")
    )
    for entry in found:
        try:
            facts = dict(checked(entry.path)[1].facts)
            where = f"{facts.get('backend', '?')}: {facts.get('device', '?')}"
            inputs = facts.get("inputs", "?")
        except SavedModelError as error:
            where, inputs = f"not usable: {error}", ""
        table.add_row(entry.path.name[:12], _size(entry.nbytes), _age(entry.age), where, inputs)
    console.show(table)
    console.say(f"{len(found)} models, {_size(sum(entry.nbytes for entry in found))}")


@cache.command()
def verify(folder: Folder = None) -> None:
    """Read every file whole: is its digest right, and is it what its name says? Ends with 1 where
    one is not."""
    faults = 0
    found = entries(folder or default_folder())
    for entry in found:
        reason = fault(entry.path)
        if reason:
            faults += 1
            console.say(f"{entry.path}: {reason}")
    console.say(f"{len(found)} models, {faults} of them faulty")
    if faults:
        raise typer.Exit(FAULTY)


@cache.command("prune")
def shrink(
    limit: Annotated[
        str, typer.Option(help="Bytes that may stay, as 500M or 2G.")
    ] = f"{LIMIT >> 30}G",
    folder: Folder = None,
) -> None:
    """Remove what was not used for longest, until the others are within a limit."""
    _removed(prune(folder or default_folder(), _bytes(limit)))


@cache.command()
def clear(folder: Folder = None) -> None:
    """Remove all of them."""
    _removed([entry for entry in entries(folder or default_folder()) if drop(entry.path)])


def _removed(gone: Sequence[Entry]) -> None:
    console.say(f"{len(gone)} models removed, {_size(sum(entry.nbytes for entry in gone))}")


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
