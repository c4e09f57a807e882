"""Writes a compiled graph to a file, and reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tflgpu.cache import whole_file
from tflgpu.compiler.parts import Compiled
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.saved.classes import Classes, classes_for, classes_of_file
from tflgpu.saved.container import Content, Index, packed, unpacked
from tflgpu.saved.kernel import CodeOf, SavedKernel
from tflgpu.saved.key import Key
from tflgpu.saved.model_lookup import FileLookup, GraphLookup, ModelLookup, kernels_of
from tflgpu.saved.rebuild import Rebuilder
from tflgpu.saved.source import Source
from tflgpu.saved.start import Start

SUFFIX = ".tflgpu"
#: The fact that is no part of a key: a file may have any name.
_NAME = "called"


def saved_bytes(
    root: Compiled | Start,
    graph: Graph,
    key: Key,
    code_of: CodeOf | None = None,
    source: Source | None = None,
    *,
    bodies: bool = False,
) -> Iterator[bytes | memoryview]:
    """A compiled graph, or a start, as the bytes of a file, piece by piece. Constants that are
    still those of the ``graph`` it was compiled from are left out, since a reader of the file has
    the graph too; with a ``source``, so are bytes of it. ``code_of`` gives what a device printed of
    a kernel, which is there in the place of its statements; with ``bodies`` both are.

    Raises:
        SavedModelError: there is something in it that a file cannot have; or a plugin's rule failed
            when it was compiled, and might not the next time.
    """
    from tflgpu.saved.flatten import Flattener  # most files are only read

    compiled = root.compiled if isinstance(root, Start) else root
    if compiled.broken_rules:
        why = next(iter(compiled.broken_rules.values()))
        raise SavedModelError(f"this model is not saved, since a kernel rule was left out: {why}")
    flat = Flattener(classes_for(graph), graph, code_of, source, bodies=bodies).flat(root)
    facts = key.facts if source is None else (*key.facts, (_NAME, source.name))
    return packed(flat.index(facts), flat.blobs)


def compiled_in(
    data: memoryview,
    graph: Graph,
    key: Key,
    where: str,
    compile: Callable[[], Compiled] | None = None,
) -> Compiled:
    """The compiled graph in a file's bytes. Arrays are views of ``data``, or of the graph's
    constants. ``compile`` gives the same anew, for statements of kernels that are not in the file.

    Raises:
        SavedModelError: the bytes are damaged, of another version, or for another key.
    """
    found = _root(data, key, where, classes_for(graph), GraphLookup(graph, compile))
    if not isinstance(found, Compiled):
        raise SavedModelError(f"a saved model is damaged: it holds a {type(found).__name__}")
    return found


def start_in(data: memoryview, source: Source, key: Key, where: str) -> Start:
    """The start in a file's bytes. The graph is not built for it.

    Raises:
        SavedModelError: as `compiled_in`.
    """
    classes = classes_of_file(lambda: source.graph)
    found = _root(data, key, where, classes, FileLookup(source))
    if not isinstance(found, Start):
        raise SavedModelError(f"a saved model is damaged: it holds a {type(found).__name__}")
    return found


def _root(data: memoryview, key: Key, where: str, classes: Classes, given: ModelLookup) -> Any:
    content = unpacked(data)
    key.insist(key_in(content.index), where)
    found = Rebuilder(content, classes, given).root()
    compiled = found.compiled if isinstance(found, Start) else found
    if isinstance(compiled, Compiled):
        for number, kernel in enumerate(kernels_of(compiled)):
            if isinstance(kernel, SavedKernel) and not kernel.has_body:
                kernel.read_by(partial(given.body, number))
    return found


def key_in(index: Index) -> Key:
    """The key that a file says."""
    return Key(tuple((name, text) for name, text in index.key if name != _NAME))


def name_in(index: Index) -> str:
    """The name that a model's file had when this was kept of it; "" where there is none."""
    return next((text for name, text in index.key if name == _NAME), "")


def write_saved(
    path: Path,
    root: Compiled | Start,
    graph: Graph,
    key: Key,
    code_of: CodeOf | None = None,
    source: Source | None = None,
    *,
    lasting: bool = True,
) -> None:
    """Write a compiled graph, or a start, to a file, which is there as a whole or not at all. One
    that is not ``lasting`` may be damaged after a loss of power, which its digest shows, and lacks
    the statements of kernels whose code it has: compiling again gives them.

    Raises:
        SavedModelError: as `saved_bytes`, or the file cannot be written.
    """
    pieces = saved_bytes(root, graph, key, code_of, source, bodies=lasting)
    try:
        whole_file.write(path, pieces, lasting=lasting)
    except OSError as error:
        raise SavedModelError(f"{path} cannot be written: {error.strerror or error}") from error


def read_saved(
    path: Path, graph: Graph, key: Key, compile: Callable[[], Compiled] | None = None
) -> Compiled:
    """Read a file. It is mapped, and weights stay in it.

    Raises:
        SavedModelError: it cannot be read, others may write to it, or as `compiled_in`.
    """
    with _naming(path):
        return compiled_in(mapped(path), graph, key, str(path), compile)


def read_start(path: Path, source: Source, key: Key) -> Start:
    """The start in a file.

    Raises:
        SavedModelError: as `read_saved`.
    """
    with _naming(path):
        return start_in(mapped(path), source, key, str(path))


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A context that puts the file's name into errors."""
    try:
        yield
    except SavedModelError as error:
        if str(path) in str(error):
            raise
        raise SavedModelError(f"{path}: {error}") from error


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
    """The contents of a file whose digest is right, before values are made of them, and its key.

    Raises:
        SavedModelError: as `mapped`, or it is damaged or of another version.
    """
    content = unpacked(mapped(path))
    return content, key_in(content.index)
