"""Bundles of a language model: ``.litertlm`` of LiteRT-LM, ``.task`` of MediaPipe, or a
``.tflite`` file beside its tokenizer.

    .litertlm   "LITERTLM", version, end of the header; the header is a flatbuffer that says where
                sections are and of which kind
    .task       a zip archive without compression: TF_LITE_PREFILL_DECODE, TOKENIZER_MODEL, METADATA

Both may come from anywhere: every offset is checked. The model is used where it lies in the mapped
file.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import quoted
from tflgpu.language_models.prompt_rules import PromptRules, rules_of_litertlm, rules_of_task
from tflgpu.tflite.flat import FlatFile, Table
from tflgpu.tflite.layouts import Field, Kind, TableLayout
from tflgpu.tflite.source import Source, map_file
from tflgpu.values import frozen

_MAGIC = b"LITERTLM"
_HEADER = 32  # bytes before the flatbuffer
_VERSION = 1
#: Kinds of sections.
_MODEL, _SENTENCEPIECE, _METADATA, _HUGGING_FACE, _WEIGHTS = 3, 4, 5, 6, 7
_TEXT = 9  # the kind of value that is a text
_PREFILL_DECODE = "tf_lite_prefill_decode"
#: The most bytes of a tokenizer, unpacked; those of large vocabularies have 30 million.
_MOST_BYTES = 256 << 20
_AGAIN = "the bundle is damaged, or was not fetched whole; fetch it again"

_ZIP_ERRORS = (
    *(zipfile.BadZipFile, struct.error, EOFError, OSError, LookupError),
    *(ValueError, RuntimeError, OverflowError),
)

_U8, _U64 = np.dtype("<u1"), np.dtype("<u8")
_TABLES: Mapping[str, TableLayout] = {
    name: TableLayout(name, {field.name: field for field in listed})
    for name, listed in {
        "Root": (Field("section_metadata", 1, Kind.TABLE),),
        "Sections": (Field("objects", 0, Kind.TABLES),),
        "Section": (
            Field("items", 0, Kind.TABLES),
            Field("begin_offset", 1, Kind.SCALAR, _U64, 0),
            Field("end_offset", 2, Kind.SCALAR, _U64, 0),
            Field("data_type", 3, Kind.SCALAR, _U8, 0),
        ),
        "Item": (
            Field("key", 0, Kind.STRING),
            Field("value_type", 1, Kind.SCALAR, _U8, 0),
            Field("value", 2, Kind.TABLE),
        ),
        "Text": (Field("value", 0, Kind.STRING),),
    }.items()
}


@frozen(eq=False)
class Bundle:
    """A language model as it is distributed.

    Attributes:
        name: For messages.
        model: The bytes of a `.tflite` file.
        sentencepiece: A SentencePiece model; or
        hugging_face: the JSON of a Hugging Face tokenizer. None of both where there is none.
        rules: What is said of prompts.
    """

    name: str
    model: Any
    sentencepiece: bytes | None = None
    hugging_face: str | None = None
    rules: PromptRules = PromptRules()


def read_bundle(source: Source, tokenizer: str | os.PathLike[str] | None = None) -> Bundle:
    """The bundle in a file, or in bytes.

    Args:
        source: The path, or the bytes.
        tokenizer: A ``tokenizer.json``, or a SentencePiece model, in the place of the bundle's.

    Raises:
        ModelError: no such file, or not a well-formed bundle.
        UnsupportedError: a bundle of a kind that is not read.
    """
    name = "the bundle"
    try:
        if isinstance(source, (str, os.PathLike)):
            name = os.fsdecode(source)
            data = map_file(name)
        else:
            data = memoryview(source).cast("B")
        if bytes(data[:8]) == _MAGIC:
            found = _read_litertlm(name, data)
        elif bytes(data[:4]) == b"PK\x03\x04":
            found = _read_task(name, data)
        else:
            found = Bundle(name, data)
        return found if tokenizer is None else _with_tokenizer(found, Path(tokenizer))
    except ModelError as error:
        raise type(error)(f"{name}: {error}") from error.__cause__


def _with_tokenizer(bundle: Bundle, path: Path) -> Bundle:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"tokenizer {path} cannot be read: {error}") from error
    if content.lstrip()[:1] == b"{":
        text = content.decode("utf-8", "replace")
        return Bundle(bundle.name, bundle.model, None, text, bundle.rules)
    return Bundle(bundle.name, bundle.model, content, None, bundle.rules)


# .litertlm


def _read_litertlm(name: str, data: memoryview) -> Bundle:
    if len(data) < _HEADER:
        raise ModelError(f"the header of a .litertlm file is cut; {_AGAIN}")
    version, _, _, _, end = struct.unpack_from("<IIIIQ", data, 8)
    if version != _VERSION:
        raise UnsupportedError(
            f"{name}: a .litertlm file of version {version}, and {_VERSION} is read; convert the "
            "model for that version, or update tflgpu"
        )
    if not _HEADER + 8 <= end <= len(data):
        raise ModelError(f"the header ends at byte {end:,} of {len(data):,}; {_AGAIN}")
    header = FlatFile(data[_HEADER:end], _TABLES.__getitem__)
    listed = header.root("header", "Root").child("section_metadata", "Sections", "sections")
    found: dict[int, memoryview] = {}
    models: dict[str, memoryview] = {}
    for section in () if listed is None else listed.children("objects", "Section", "section"):
        kind, content = section.integer("data_type"), _content(section, data)
        if kind == _MODEL:
            models[_model_type(section)] = content
        elif kind == _WEIGHTS:
            raise UnsupportedError(
                f"{name}: its weights are a section of their own, which is not read; export the "
                "model with its weights in the .tflite file"
            )
        else:
            found.setdefault(kind, content)
    model = models.get(_PREFILL_DECODE, next(iter(models.values()), None))
    if model is None or (len(models) > 1 and _PREFILL_DECODE not in models):
        raise ModelError(
            f"there is no model {_PREFILL_DECODE!r} in it, but {sorted(models) or 'none'}; take a "
            "bundle of a language model"
        )
    rules = PromptRules()
    if _METADATA in found:
        rules = rules_of_litertlm(bytes(found[_METADATA]))
    pieces = found.get(_SENTENCEPIECE)
    packed = found.get(_HUGGING_FACE)
    text = None if packed is None else _unpacked(packed)
    return Bundle(name, model, None if pieces is None else bytes(pieces), text, rules)


def _content(section: Table, data: memoryview) -> memoryview:
    begin, end = section.integer("begin_offset"), section.integer("end_offset")
    if not _HEADER <= begin <= end <= len(data):
        raise ModelError(
            f"{section.where} has bytes {begin:,} to {end:,} of a file of {len(data):,}; {_AGAIN}"
        )
    return data[begin:end]


def _model_type(section: Table) -> str:
    for item in section.children("items", "Item", f"{section.where}: item"):
        if item.text("key") == "model_type" and item.integer("value_type") == _TEXT:
            value = item.child("value", "Text", f"{section.where}: model_type")
            return "" if value is None else value.text("value").lower()
    return _PREFILL_DECODE


def _unpacked(content: memoryview) -> str:
    """A tokenizer's JSON: behind its size, packed by zlib."""
    try:
        packed = zlib.decompressobj()
        text = packed.decompress(content[8:], _MOST_BYTES)
    except zlib.error as error:
        raise ModelError(f"its tokenizer cannot be unpacked: {error}; {_AGAIN}") from error
    if packed.unconsumed_tail or not packed.eof:
        raise ModelError(f"its tokenizer does not end within {_MOST_BYTES:,} bytes; {_AGAIN}")
    return text.decode("utf-8", "replace")


# .task


def _read_task(name: str, data: memoryview) -> Bundle:
    try:
        with zipfile.ZipFile(_File(data)) as archive:
            entries = {info.filename: info for info in archive.infolist()}

            def part(key: str) -> memoryview | None:
                info = entries.get(key)
                return None if info is None else _stored(info, data)

            model, pieces, said = (
                part(key) for key in ("TF_LITE_PREFILL_DECODE", "TOKENIZER_MODEL", "METADATA")
            )
    except _ZIP_ERRORS as error:
        raise ModelError(f"it cannot be read as a .task bundle: {error}; {_AGAIN}") from error
    if model is None:
        raise ModelError(
            f"there is no TF_LITE_PREFILL_DECODE in it, but {', '.join(map(quoted, entries))}; "
            "take a bundle of a language model"
        )
    rules = PromptRules() if said is None else rules_of_task(bytes(said))
    return Bundle(name, model, None if pieces is None else bytes(pieces), None, rules)


def _stored(info: zipfile.ZipInfo, data: memoryview) -> memoryview:
    """A file of an archive, where it lies."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise ModelError(f"{quoted(info.filename)} is compressed, and bundles are not; {_AGAIN}")
    at = info.header_offset
    if not 0 <= at <= len(data) - 30:
        raise ModelError(f"{quoted(info.filename)} is not within the file; {_AGAIN}")
    name, extra = struct.unpack_from("<HH", data, at + 26)
    begin = at + 30 + name + extra
    if begin + info.file_size > len(data):
        raise ModelError(f"{quoted(info.filename)} does not end within the file; {_AGAIN}")
    return data[begin : begin + info.file_size]


class _File(io.RawIOBase):
    """Mapped bytes as a file, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
