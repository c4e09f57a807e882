"""`Source`: a file's bytes, one of its subgraphs, and the shapes of its inputs; the graph on
demand.

Together they say what the graph is before it is built, so that a compiled model can be found
without building it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import attrs
import numpy as np

from tflgpu.cache.digest import digest_of
from tflgpu.compiler.parts import Compiled
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Shape
from tflgpu.tflite.source import check_unchanged
from tflgpu.values import define

#: Names and texts, in order.
Facts = tuple[tuple[str, str], ...]
#: What the digest of a model's file is called.
FILE = "file"


@define(eq=False, slots=False)
class Source:
    """All that a graph is built from, before it is built.

    Attributes:
        content: The bytes of the model's file, which stay as they are.
        subgraph: Which of its subgraphs.
        shapes: Those that inputs were given, by tensor index.
        build: Builds the graph; it is given a function that takes warnings.
        known: The digest, where it is known already.
        warnings: What was said while the graph was built.
        compile: Compiles the graph as it was compiled when it was kept, for what a kept start does
            not have. `tflgpu.runtime.compile_or_load` sets it, since it knows the target.
    """

    content: memoryview
    subgraph: int
    shapes: Mapping[int, Shape]
    build: Callable[[Callable[[str], object]], Graph]
    known: str = ""
    warnings: list[str] = attrs.Factory(list)
    compile: Callable[[Source], Compiled] | None = None

    @cached_property
    def digest(self) -> str:
        """The digest of all bytes of the file."""
        return self.known or digest_of(self.content).hex()

    @property
    def name(self) -> str:
        """The file's name, without its folder; "" of bytes in memory."""
        return Path(getattr(self.content.obj, "path", "")).name

    @property
    def is_digested(self) -> bool:
        """Whether the digest was needed so far."""
        return bool(self.known) or "digest" in vars(self)

    def check(self) -> None:
        """Check that the bytes read of the file are those of its digest. Else the compiled form of
        one file would be stored for another.

        Raises:
            ModelError: the file was written to in the meantime.
        """
        check_unchanged(self.content, self._is_same if self.is_digested else None)

    def _is_same(self) -> bool:
        return digest_of(self.content).hex() == self.digest

    @property
    def facts(self) -> Facts:
        """The source as facts of a key."""
        shapes = {index: list(self.shapes[index]) for index in sorted(self.shapes)}
        return (
            (FILE, self.digest),
            ("subgraph", str(self.subgraph)),
            ("resized", repr(shapes)),
        )

    @cached_property
    def graph(self) -> Graph:
        """The graph, built when it is first asked for.

        Raises:
            ModelError, InputError: as `tflgpu.tflite.build.build_graph`.
        """
        return self.build(self.warnings.append)

    @cached_property
    def compiled(self) -> Compiled:
        """The compiled form, made at the first use."""
        assert self.compile is not None
        return self.compile(self)

    def place(self, array: Array) -> int | None:
        """Where an array lies in the file's bytes; None where it does not."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        at = int(array.__array_interface__["data"][0]) - self._start
        return at if at >= 0 and at + array.nbytes <= len(self.content) else None

    @cached_property
    def _start(self) -> int:
        whole = np.frombuffer(self.content, np.uint8)
        return int(whole.__array_interface__["data"][0])
