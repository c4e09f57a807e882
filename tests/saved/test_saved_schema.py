"""The schema file and the reader say the same."""

from __future__ import annotations

import re
from pathlib import Path

import tflgpu.saved
from tflgpu.saved.container import ALIGNMENT, HEADER, MAGIC
from tflgpu.saved.index import IDENTIFIER, LAYOUT

SCHEMA = (Path(tflgpu.saved.__file__).parent / "saved.fbs").read_text(encoding="utf-8")
NAMES = {"|u1": "ubyte", "<u4": "uint", "<i8": "long", "<f8": "double", "<u8": "ulong"}


def test_the_fields_are_those_of_the_schema() -> None:
    table = re.search(r"table Index \{(.*?)\n\}", SCHEMA, re.DOTALL)
    assert table is not None
    said = re.findall(r"^  (\w+):\[(\w+)\];", table[1], re.MULTILINE)
    known = [(f.name, NAMES[f.number.str]) for f in LAYOUT.fields.values() if f.number is not None]
    assert said == known
    assert [field.slot for field in LAYOUT.fields.values()] == list(range(len(said)))


def test_the_header_is_what_the_schema_says() -> None:
    assert f'file_identifier "{IDENTIFIER.decode()}";' in SCHEMA
    assert f"{HEADER}             the index" in SCHEMA
    assert f"at a multiple of {ALIGNMENT} bytes" in SCHEMA
    assert MAGIC == b"tflgpu saved 2\n\0"
    assert r'"tflgpu saved 2\n", 0' in SCHEMA
