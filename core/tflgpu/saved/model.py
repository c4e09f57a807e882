"""A compiled graph as a file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from tflgpu.cache import whole_file
from tflgpu.compiler.compile import Compiled
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.saved.classes import classes_for
from tflgpu.saved.container import Content, packed, unpacked
from tflgpu.saved.flatten import CodeOf, Flattener
from tflgpu.saved.index import Index
from tflgpu.saved.key import Key
from tflgpu.saved.rebuild import Rebuilder

SUFFIX = ".tflgpu"


def saved_bytes(
    compiled: Compiled, graph: Graph, key: Key, code_of: CodeOf | None = None
) -> Iterator[bytes | memoryview]:
    """A compiled graph as the bytes of a file, piece by piece. Constants that are still those of the
    ``graph`` it was compiled from are not among them, since whoever reads the file has it too.
    ``code_of`` gives what a device printed of a kernel.

    Raises:
        SavedModelError: there is something in it that a file cannot have; or a plugin's rule failed
            when it was compiled, and might not the next time.
    """
    if compiled.broken_rules:
        why = next(iter(compiled.broken_rules.values()))
        raise SavedModelError(f"this model is not saved, since a kernel rule was left out: {why}")
    flattener = Flattener(classes_for(graph), graph, code_of)
    flat = flattener.flat(compiled)
    # The key's texts come last, so that they stand together; those that are there are used.
    places = [flattener.text(text) for fact in key.facts for text in fact]
    index = attrs.evolve(flat.index, texts=flattener.texts, key=places)
    return packed(index, flat.blobs)


def compiled_in(data: memoryview, graph: Graph, key: Key, where: str) -> Compiled:
    """What was saved. Arrays are views of ``data``, or of the graph's constants.

    Raises:
        SavedModelError: the bytes are damaged, of another version, or for another key.
    """
    content = unpacked(data)
    key.insist(key_in(content.index), where)
    found = Rebuilder(content, classes_for(graph), graph).root()
    if not isinstance(found, Compiled):
        raise SavedModelError(f"a saved model is damaged: it holds a {type(found).__name__}")
    return found


def key_in(index: Index) -> Key:
    """The key that a file says.

    Raises:
        SavedModelError: it has none.
    """
    texts = _texts_at(index, index.key)
    return Key(tuple(zip(texts[::2], texts[1::2], strict=True)))


def write_saved(
    path: Path, compiled: Compiled, graph: Graph, key: Key, code_of: CodeOf | None = None
) -> None:
    """Write a compiled graph to a file, which is there as a whole or not at all.

    Raises:
        SavedModelError: as `saved_bytes`, or the file cannot be written.
    """
    pieces = saved_bytes(compiled, graph, key, code_of)
    try:
        whole_file.write(path, pieces)
    except OSError as error:
        raise SavedModelError(f"{path} cannot be written: {error.strerror or error}") from error


def read_saved(path: Path, graph: Graph, key: Key) -> Compiled:
    """Read a file. It is mapped, and weights stay in it.

    Raises:
        SavedModelError: it cannot be read, others may write to it, or as `compiled_in`.
    """
    try:
        return compiled_in(mapped(path), graph, key, str(path))
    except SavedModelError as error:
        raise error if str(path) in str(error) else SavedModelError(f"{path}: {error}") from error


def mapped(path: Path) -> memoryview:
    """The bytes of a file that is only ours.

    Raises:
        SavedModelError: it cannot be read, or others may write to it.
    """
    try:
        return whole_file.mapped(path)
    except OSError as error:
        raise SavedModelError(f"{path} cannot be used: {error.strerror or error}") from error


def checked(path: Path) -> tuple[Content, Key]:
    """What is in a file whose digest is right, not made into values, and what it is for.

    Raises:
        SavedModelError: as `mapped`, or it is damaged or of another version.
    """
    content = unpacked(mapped(path))
    return content, key_in(content.index)


def _texts_at(index: Index, places: Sequence[int]) -> list[str]:
    if len(places) % 2 or max(places, default=0) >= len(index.texts):
        raise SavedModelError("a saved model is damaged: its key")
    return [index.texts[place] for place in places]
