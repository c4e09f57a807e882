"""The model beside a saved model: parts of it that the saved file refers to instead of holding a
copy.

The model is a graph, or the bytes of its file, from which a graph is built when one is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from tflgpu.compiler.parts import Compiled
from tflgpu.errors import SavedModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import FileOptions, Graph
from tflgpu.saved.source import Source
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel, Stmt


class ModelLookup(Protocol):
    """Looks up the parts of a model that records refer to; raises LookupError or SavedModelError
    where there is no such part."""

    def data(self, value: int) -> Array | None:
        """The contents of a value of the graph."""

    def source(self, place: int) -> FileOptions | None:
        """The file's options of a node, by its place in the graph."""

    def bytes_at(self, start: int, size: int) -> memoryview:
        """Some of the model's bytes."""

    def body(self, number: int, kernel: Kernel) -> tuple[Stmt, ...]:
        """The statements of the compiled graph's kernel of that number, which looks like
        ``kernel``."""


@frozen(slots=False)
class GraphLookup:
    """A graph. ``compile`` compiles it as it was compiled when it was saved, once for all
    kernels."""

    graph: Graph
    compile: Callable[[], Compiled] | None = None

    @cached_property
    def compiled(self) -> Compiled:
        """The compiled graph, made at the first use.

        Raises:
            SavedModelError: there is no ``compile``.
        """
        if self.compile is None:
            raise SavedModelError("a saved model is damaged: a kernel without statements")
        return self.compile()

    def data(self, value: int) -> Array | None:
        """The contents of a value of the graph; None where it is no constant."""
        return self.graph.values[value].data

    def source(self, place: int) -> FileOptions | None:
        """The file's options of a node, by its place in the graph."""
        return self.graph.nodes[place].source

    def bytes_at(self, start: int, size: int) -> memoryview:
        """Raises `SavedModelError`: a graph has no bytes of a file."""
        raise SavedModelError("a saved model is damaged: it names bytes of a model that is a graph")

    def body(self, number: int, kernel: Kernel) -> tuple[Stmt, ...]:
        """The statements of that kernel, from compiling the model anew."""
        return body_in(self.compiled, number, kernel)


@frozen
class FileLookup:
    """The bytes of a model's file."""

    file: Source

    def data(self, value: int) -> Array | None:
        """The contents of a value of the graph; None where it is no constant."""
        return self.file.graph.values[value].data

    def source(self, place: int) -> FileOptions | None:
        """The file's options of a node; the graph is built when a field of them is read."""
        return SavedSource(self.file, place)

    def bytes_at(self, start: int, size: int) -> memoryview:
        """Bytes of the file."""
        if start < 0 or start + size > len(self.file.content):
            raise SavedModelError("a saved model is damaged: it names bytes that no model has")
        return self.file.content[start : start + size]

    def body(self, number: int, kernel: Kernel) -> tuple[Stmt, ...]:
        """The statements of that kernel, from compiling the model anew."""
        return body_in(self.file.compiled, number, kernel)


class SavedSource(FileOptions):
    """An operator's options in a model's file, looked up in its graph when they are read."""

    __slots__ = ("_file", "_found", "_place")
    _file: Source
    _place: int
    _found: FileOptions | None

    def __init__(self, file: Source, place: int) -> None:
        """The options of the node at ``place`` of a graph."""
        for name, value in (("_file", file), ("_place", place), ("_found", None)):
            object.__setattr__(self, name, value)  # these are frozen

    @property
    def found(self) -> FileOptions:
        """The options in the graph.

        Raises:
            SavedModelError: nothing.
        """
        if self._found is None:
            source = self._file.graph.nodes[self._place].source
            if source is None:
                raise SavedModelError("a saved model is damaged: it names what no file says")
            object.__setattr__(self, "_found", source)
            return source
        return self._found


def _field(name: str) -> Any:
    return property(lambda self: getattr(self.found, name))


for _each in attrs.fields(FileOptions):
    setattr(SavedSource, _each.name, _field(_each.name))


def kernels_of(compiled: Compiled) -> list[Kernel]:
    """The kernels of all plans, each once, in the order of their first dispatch."""
    found = {id(d.kernel): d.kernel for plan in compiled.plans for d in plan.dispatches}
    return list(found.values())


def body_in(compiled: Compiled, number: int, kernel: Kernel) -> tuple[Stmt, ...]:
    """The statements of a kernel of what was compiled anew.

    Raises:
        SavedModelError: what came out is not what was saved.
    """
    found = kernels_of(compiled)
    same = found[number] if number < len(found) else None
    if same is None or any(
        getattr(same, name) != getattr(kernel, name)
        for name in ("name", "workgroup", "buffers", "shared")
    ):
        raise SavedModelError(
            f"kernel {kernel.name} of a saved model is not what its model compiles to; delete "
            "the file, or make it again with `tflgpu compile`"
        )
    return same.body
