"""Bundles as LiteRT-LM and MediaPipe write them, with a random model and a tokenizer trained on a
few sentences."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from tests.interpreter.cache_models import language_model

SENTENCES = [
    "the sky is blue because light is scattered by the air",
    "a small model answers a short question with a short text",
    "tokens are pieces of words and words are pieces of text",
    "caches keep what was read so that it is read once",
]
ROOM, VOCABULARY = 48, 96


@cache
def pieces() -> bytes:
    """A SentencePiece model of 64 pieces."""
    package = pytest.importorskip("sentencepiece", reason="needs tflgpu[text]")
    made = io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 8), model_writer=made, vocab_size=64, model_type="bpe",
        user_defined_symbols=["<turn>", "<end>"], minloglevel=2, num_threads=1,
    )  # fmt: skip
    return made.getvalue()


@cache
def json_tokenizer() -> str:
    """A byte-level tokenizer of Hugging Face's."""
    package = pytest.importorskip("tokenizers", reason="needs tflgpu[text]")
    made = package.Tokenizer(package.models.BPE())
    made.pre_tokenizer = package.pre_tokenizers.Whitespace()
    made.decoder = package.decoders.BPEDecoder()
    trainer = package.trainers.BpeTrainer(vocab_size=80, special_tokens=["<turn>", "<end>"])
    made.train_from_iterator(SENTENCES, trainer)
    return str(made.to_str())


def model(vocabulary: int = VOCABULARY, chunk: int = 4) -> bytes:
    """Of random weights."""
    return language_model(chunk, seed=5, room=ROOM, vocabulary=vocabulary)


# Protocol buffers


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: float | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def token(value: str | Sequence[int]) -> bytes:
    if isinstance(value, str):
        return field(2, value)
    return field(1, field(1, b"".join(map(varint, value))))


def llm_metadata(
    start: Any = None,
    stops: Sequence[Any] = (),
    around: tuple[str, str, str] | None = None,
    sampler: Mapping[int, int | float] | None = None,
    most: int = 0,
) -> bytes:
    found = b"" if start is None else field(1, token(start))
    found += b"".join(field(2, token(stop)) for stop in stops)
    if around is not None:
        user = field(1, around[0]) + field(2, around[1])
        found += field(3, field(1, user) + field(2, field(1, around[2])))
    if sampler is not None:
        found += field(4, b"".join(field(n, v) for n, v in sampler.items()))
    return found + (field(5, most) if most else b"")


# Containers


def litertlm(sections: Sequence[tuple[int, bytes, str]], version: int = 1) -> bytes:
    """Sections, each a kind, its content and its model type; the header by the flatbuffers
    package."""
    flatbuffers = pytest.importorskip("flatbuffers")
    builder = flatbuffers.Builder(1024)
    at, places = 16384, []
    for _, content, _ in sections:
        places.append(at)
        at += -(-len(content) // 16384) * 16384
    made = []
    for (kind, content, model_type), begin in zip(sections, places, strict=True):
        items = None
        if model_type:
            text, key = builder.CreateString(model_type), builder.CreateString("model_type")
            builder.StartObject(1)
            builder.PrependUOffsetTRelativeSlot(0, text, 0)
            value = builder.EndObject()
            builder.StartObject(3)
            builder.PrependUOffsetTRelativeSlot(0, key, 0)
            builder.PrependUint8Slot(1, 9, 0)
            builder.PrependUOffsetTRelativeSlot(2, value, 0)
            item = builder.EndObject()
            builder.StartVector(4, 1, 4)
            builder.PrependUOffsetTRelative(item)
            items = builder.EndVector()
        builder.StartObject(4)
        if items is not None:
            builder.PrependUOffsetTRelativeSlot(0, items, 0)
        builder.PrependUint64Slot(1, begin, 0)
        builder.PrependUint64Slot(2, begin + len(content), 0)
        builder.PrependUint8Slot(3, kind, 0)
        made.append(builder.EndObject())
    builder.StartVector(4, len(made), 4)
    for section in reversed(made):
        builder.PrependUOffsetTRelative(section)
    objects = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, objects, 0)
    listed = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, listed, 0)
    builder.Finish(builder.EndObject())
    header = bytes(builder.Output())
    whole = b"LITERTLM" + struct.pack("<IIIIQ", version, 5, 0, 0, 32 + len(header)) + header
    for (_, content, _), begin in zip(sections, places, strict=True):
        whole = whole.ljust(begin, b"\0") + content
    return whole


def zlibbed(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + zlib.compress(text.encode())


def task(files: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()
