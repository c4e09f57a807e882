"""The corpus: cases that once were wrong, minimised, with what they come to now.

A case is a small `.tflite` file and a line in ``cases.jsonl``. `replay` runs all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tests.differential.case import Script

FOLDER = Path(__file__).parent / "corpus"


@attrs.frozen(eq=False)
class Kept:
    """One case of the corpus.

    Attributes:
        name: of the file, without its suffix.
        content: the file.
        script: what is done with it.
        sentence: what was wrong when it was found.
    """

    name: str
    content: bytes
    script: Script
    sentence: str


def load(folder: Path = FOLDER) -> Iterator[Kept]:
    """Every case of a corpus."""
    lines = folder / "cases.jsonl"
    if not lines.is_file():
        return
    for line in lines.read_text().splitlines():
        entry = json.loads(line)
        content = (folder / f"{entry['name']}.tflite").read_bytes()
        yield Kept(entry["name"], content, _script(entry["script"]), entry["sentence"])


def keep(content: bytes, script: Script, sentence: str, folder: Path = FOLDER, **more: Any) -> str:
    """Add a case; its name."""
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(content + repr(_plain(script)).encode()).hexdigest()[:12]
    if (folder / f"{name}.tflite").exists():
        return name
    (folder / f"{name}.tflite").write_bytes(content)
    entry = {"name": name, "sentence": sentence, **more, "script": _plain(script)}
    with (folder / "cases.jsonl").open("a") as lines:
        lines.write(json.dumps(entry) + "\n")
    return name


def _plain(script: Script) -> dict[str, Any]:
    return {
        **attrs.asdict(script, filter=lambda a, v: a.name not in ("values", "resize")),
        "resize": {str(i): list(s) for i, s in script.resize.items()},
        "values": {str(i): [str(v.dtype), list(v.shape), v.reshape(-1).tolist()]
                   for i, v in script.values.items()},
    }  # fmt: skip


def _script(plain: dict[str, Any]) -> Script:
    values = {
        int(i): np.array(numbers, dtype).reshape(shape)
        for i, (dtype, shape, numbers) in plain["values"].items()
    }
    resize = {int(i): tuple(s) for i, s in plain["resize"].items()}
    others = {k: v for k, v in plain.items() if k not in ("values", "resize", "runs")}
    return Script(runs=tuple(plain["runs"]), values=values, resize=resize, **others)
