"""The index of a saved model as a flatbuffer, whose schema is ``saved.fbs``.

Python's flatbuffers library writes it. What is read is checked before it is followed, as the model
reader does it (`tflgpu.tflite.flat`), since the library itself follows any offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import ModelError, SavedModelError
from tflgpu.tflite.flat import FlatFile
from tflgpu.tflite.layouts import Field, Kind, TableLayout
from tflgpu.values import frozen

IDENTIFIER = b"TFGS"
_NUMBERS = (
    ("texts", "<u1"),
    ("text_ends", "<u4"),
    ("integers", "<i8"),
    ("floats", "<f8"),
    ("blobs", "<u8"),
    ("key", "<u4"),
    ("classes", "<u4"),
    ("words", "<u4"),
    ("bodies", "<u4"),
)
LAYOUT = TableLayout(
    "Index",
    {
        name: Field(name, slot, Kind.NUMBERS, np.dtype(kind))
        for slot, (name, kind) in enumerate(_NUMBERS)
    },
)
_WHERE = "the index of a saved model"


@frozen(eq=False)
class Index:
    """The contents of a file without its arrays; ``saved.fbs`` describes each field."""

    texts: tuple[str, ...]
    integers: Sequence[int]
    floats: Sequence[float]
    blobs: Sequence[int]
    key: Sequence[int]
    classes: Sequence[int]
    words: Sequence[int]
    #: Of a file that is read, an array that views it: most of it may never be looked at.
    bodies: Sequence[int] | npt.NDArray[np.uint32]


def index_bytes(index: Index) -> bytes:
    """The flatbuffer."""
    import flatbuffers  # not at the top: most starts only read

    texts = [text.encode("utf-8", "surrogatepass") for text in index.texts]
    vectors: dict[str, npt.NDArray[Any]] = {
        "texts": np.frombuffer(b"".join(texts), np.uint8),
        "text_ends": np.cumsum([len(text) for text in texts], dtype=np.uint64),
    }
    for name in ("integers", "floats", "blobs", "key", "classes", "words", "bodies"):
        vectors[name] = np.array(getattr(index, name), dict(_NUMBERS)[name])
    builder = flatbuffers.Builder(1024 + sum(v.nbytes for v in vectors.values()))
    places = {
        name: builder.CreateNumpyVector(vectors[name].astype(kind))
        for name, kind in _NUMBERS
        if vectors[name].size
    }
    builder.StartObject(len(_NUMBERS))
    for slot, (name, _) in enumerate(_NUMBERS):
        if name in places:
            builder.PrependUOffsetTRelativeSlot(slot, places[name], 0)
    builder.Finish(builder.EndObject(), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def read_index(data: memoryview) -> Index:
    """The index in a flatbuffer, which may be anything.

    Raises:
        SavedModelError: it is none.
    """
    try:
        file = FlatFile(data)
        file.require(0, 8, _WHERE)
        if bytes(data[4:8]) != IDENTIFIER:
            raise SavedModelError(f"{_WHERE} is none; the file is damaged")
        table = file.table(file.follow(0, _WHERE), _WHERE, LAYOUT)
        found = {name: table.array(name) for name, _ in _NUMBERS}
    except ModelError as error:
        raise SavedModelError(f"a saved model is damaged: {error}") from None
    text, start = found["texts"].tobytes(), 0
    texts: list[str] = []
    for end in found["text_ends"].tolist():
        if not start <= end <= len(text):
            raise SavedModelError(f"{_WHERE}: text {len(texts)} does not lie in it")
        try:
            texts.append(text[start:end].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise SavedModelError(f"{_WHERE}: text {len(texts)} is no UTF-8") from None
        start = end
    names = ("integers", "floats", "blobs", "key", "classes", "words")
    rest: dict[str, Any] = {name: found[name].tolist() for name in names}
    return Index(texts=tuple(texts), bodies=found["bodies"], **rest)
