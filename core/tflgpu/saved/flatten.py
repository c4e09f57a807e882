"""Turns values into records: each value once, after those that it refers to, without recursion.

Nothing here recurses: expressions of kernels may be thousands deep.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.language.kernel import Kernel
from tflgpu.saved import records
from tflgpu.saved.checks import told
from tflgpu.saved.classes import Classes, SavedClass, name_of
from tflgpu.saved.index import Index
from tflgpu.saved.kernel import CodeOf
from tflgpu.saved.source import Source

_I64 = 1 << 63
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
#: Contents that lie in memory as they would in a file.
_PLAIN_KINDS = "biufc"


@attrs.frozen(eq=False)
class Flat:
    """Records, and the arrays that they refer to. ``index`` lacks the key and the arrays'
    places."""

    index: Index
    blobs: list[memoryview]


@attrs.define(eq=False)
class _Tables:
    """The vectors of texts and numbers that all records of a file share."""

    texts: dict[str, int] = attrs.Factory(dict)
    integers: list[int] = attrs.Factory(list)
    floats: list[float] = attrs.Factory(list)
    #: Places of numbers that stand alone: integers by value, floats by their bits.
    single: dict[int | bytes, int] = attrs.Factory(dict)
    blobs: list[memoryview] = attrs.Factory(list)
    kinds: dict[type, int] = attrs.Factory(dict)
    classes: list[int] = attrs.Factory(list)
    bodies: list[int] = attrs.Factory(list)

    def text(self, text: str) -> int:
        """The place of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def number(self, key: int | bytes, number: Any, numbers: list[Any]) -> int:
        """The place of a number."""
        place = self.single.get(key)
        if place is None:
            place = self.single[key] = len(numbers)
            numbers.append(number)
        return place

    def integer(self, number: int) -> int:
        """The place of a whole number of at most 64 bits."""
        return self.number(number, number, self.integers)

    def blob(self, data: memoryview) -> int:
        """The place of an array's bytes."""
        self.blobs.append(data)
        return len(self.blobs) - 1


class Flattener:
    """Writes records of values."""

    def __init__(
        self,
        classes: Classes,
        given: Graph | None = None,
        code_of: CodeOf | None = None,
        source: Source | None = None,
    ) -> None:
        """Nothing yet.

        Args:
            classes: What there may be values of.
            given: A graph whose constants, and what the file says of its nodes, are named and not
                written; None where all is to be written.
            code_of: Gives a device's code of a kernel, for the file to have in the place of its
                body.
            source: Where ``given`` was built from. Then constants are named as parts of its bytes.
        """
        self._given_source = source
        self._classes = classes
        self._code_of = code_of
        self._tables = _Tables()
        self._is_body = False
        self._runs: dict[tuple[int, bytes], int] = {}
        self._words: list[int] = []
        self._count = 0
        self._by_content: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the identity of one of them
        self._whole = given is None
        if given is not None:
            self._name_given(given)

    def flat(self, root: Any) -> Flat:
        """Everything that ``root`` is made of; its record is the last.

        Raises:
            SavedModelError: there is something in it that files cannot have; says where.
        """
        self._add(root)
        found = self._tables
        index = Index(
            self.texts,
            found.integers,
            found.floats,
            (),
            (),
            found.classes,
            self._words,
            found.bodies,
        )
        return Flat(index, found.blobs)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts so far."""
        return tuple(self._tables.texts)

    def text(self, text: str) -> int:
        """The place of a text."""
        return self._tables.text(text)

    # Inside

    def _name_given(self, graph: Graph) -> None:
        for value in graph.values.values():
            # Looking up what is no part of the bytes takes building the graph.
            if value.data is not None and (
                self._given_source is None or value.data.dtype.kind not in _PLAIN_KINDS
            ):
                self._name(value.data, records.GIVEN_DATA, value.id)
        for place, node in enumerate(graph.nodes):
            if node.source is not None:
                self._name(node.source, records.GIVEN_SOURCE, place)

    def _name(self, item: Any, kind: int, number: int) -> None:
        if id(item) not in self._by_identity:
            self._keep(item, self._emit((kind, self._tables.integer(number))))

    def _add(self, root: Any) -> None:
        stack, open_ = [root], set[int]()
        parts_of: dict[int, list[Any]] = {}
        while stack:
            item = stack[-1]
            if self._place(item) is not None:
                stack.pop()
                continue
            if type(item) is tuple and not self._is_body and (run := self._run(item)) is not None:
                self._keep(item, run)
                stack.pop()
                continue
            parts = parts_of.get(id(item))
            if parts is None:
                parts = parts_of[id(item)] = self._parts(item)
                # Parts may be objects that were only just made.
                self._kept.append(parts)
            waiting = [part for part in parts if self._place(part) is None]
            if waiting:
                if id(item) in open_:
                    raise SavedModelError(f"{told(item)} is part of itself, and cannot be saved")
                open_.add(id(item))
                stack += waiting[::-1]
                continue
            open_.discard(id(item))
            refs = [self._place(part) for part in parts]
            self._keep(item, self._record(item, [r for r in refs if r is not None]))
            stack.pop()

    def _place(self, item: Any) -> int | None:
        if type(item) in _ATOMS:
            return self._atom(item)
        return self._by_identity.get(id(item))

    def _keep(self, item: Any, place: int) -> None:
        self._by_identity[id(item)] = place
        self._kept.append(item)

    def _parts(self, item: Any) -> list[Any]:
        """The values that a value consists of, without those that its record holds itself."""
        kind = type(item)
        if kind in (tuple, list):
            return list(item)
        if isinstance(item, (Mapping, frozenset)):
            self._check_keys(item)
        if kind is frozenset:
            return sorted(item, key=lambda each: (type(each).__name__, repr(each)))
        if isinstance(item, Mapping):
            return [each for pair in item.items() for each in pair]
        if isinstance(item, Kernel):
            return [item.name, item.workgroup, item.buffers, item.shared]
        known = self._classes.of(kind)
        return [] if known is None else known.parts(item)

    def _check_keys(self, keys: Iterable[Any]) -> None:
        for key in keys:
            if not isinstance(key, records.KEYS):
                raise SavedModelError(
                    f"a saved model has texts and whole numbers as keys, and {told(key)} is neither"
                )

    def _record(self, item: Any, refs: list[int]) -> int:
        kind = type(item)
        if kind is tuple:
            return self._unique((records.TUPLE, len(refs), *refs))
        if kind is list:
            return self._emit((records.LIST, len(refs), *refs))
        if kind is frozenset:
            return self._unique((records.SET, len(refs), *refs))
        if isinstance(item, Mapping):
            return self._emit((records.MAPPING, len(refs), *refs))
        if isinstance(item, Kernel):
            return self._kernel(item, refs)
        known = self._classes.of(kind)
        if known is not None:
            return self._object(item, known, refs)
        if isinstance(item, enum.Enum) and self._classes.enum(name_of(kind)) is kind:
            return self._unique((records.MEMBER, self.text(name_of(kind)), self.text(item.name)))
        if isinstance(item, (np.ndarray, np.generic)) and item.dtype.kind in _PLAIN_KINDS:
            return self._array(item)
        if isinstance(item, np.dtype) and item.kind in _PLAIN_KINDS:
            return self._unique((records.DTYPE, self.text(item.newbyteorder("<").str)))
        if isinstance(item, memoryview) and self._whole:
            return self._emit((records.BYTES, self._tables.blob(item)))
        raise SavedModelError(
            f"a saved model cannot have a {name_of(kind)}, and this one would: {told(item)}"
        )

    def _object(self, item: Any, known: SavedClass, refs: list[int]) -> int:
        if not self._whole:  # it will be read again
            self._check(known, item)
        kinds = self._tables.kinds
        if known.kind not in kinds:
            kinds[known.kind] = len(kinds)
            names = [self.text(name) for name in known.fields]
            self._tables.classes += [self.text(known.name), len(names), *names]
        words = (records.OBJECT + kinds[known.kind], *refs)
        return self._unique(words) if known.by_value else self._emit(words)

    def _kernel(self, item: Kernel, refs: list[int]) -> int:
        bodies = self._tables.bodies
        code = None if self._code_of is None else self._code_of(item)
        if code is not None:
            place = 1 + self._tables.blob(memoryview(code))
            return self._emit((records.KERNEL, *refs, len(bodies), 0, place))
        body = Flattener(self._classes)
        body._tables, body._is_body, body._whole = self._tables, True, self._whole
        body._add(item.body)
        words = (records.KERNEL, *refs, len(bodies), len(body._words), 0)
        bodies += body._words
        return self._emit(words)

    @staticmethod
    def _check(known: SavedClass, item: Any) -> None:
        for name, check, part in zip(known.fields, known.checks, known.parts(item), strict=True):
            if check is not None and not check(part):
                raise SavedModelError(
                    f"{known.name}.{name} is {told(part)}, which its type does not allow, so that "
                    "it cannot be saved"
                )

    def _atom(self, item: Any) -> int:
        if item is None:
            return self._unique((records.NONE,))
        kind = type(item)
        if kind is bool:
            return self._unique((records.TRUE if item else records.FALSE,))
        if kind is int:
            if -_I64 <= item < _I64:
                return self._unique((records.INTEGER, self._tables.integer(item)))
            return self._unique((records.LARGE, self.text(f"{item:x}")))
        if kind is float:
            bits = struct.pack("<d", item)  # every NaN, and both zeros
            return self._unique(
                (records.FLOAT, self._tables.number(bits, item, self._tables.floats))
            )
        if kind is str:
            return self._unique((records.TEXT, self.text(item)))
        found = self._by_identity.get(id(item))
        if found is None:
            found = self._emit((records.BYTES, self._tables.blob(memoryview(item))))
            self._keep(item, found)
        return found

    def _array(self, item: Any) -> int:
        dtype = self.text(item.dtype.newbyteorder("<").str)
        if self._given_source is not None and isinstance(item, np.ndarray):
            start = self._given_source.place(item)
            if start is not None and item.dtype.str == item.dtype.newbyteorder("<").str:
                numbers = [self._tables.integer(int(n)) for n in (start, *item.shape)]
                return self._emit((records.GIVEN_ARRAY, dtype, numbers[0], item.ndim, *numbers[1:]))
        data = np.ascontiguousarray(item, item.dtype.newbyteorder("<"))
        blob = self._tables.blob(data.reshape(-1).view(np.uint8).data)
        if isinstance(item, np.generic):
            return self._emit((records.NUMBER, dtype, blob))
        sizes = [self._tables.integer(int(size)) for size in item.shape]
        return self._emit((records.ARRAY, dtype, blob, len(sizes), *sizes))

    def _run(self, item: tuple[Any, ...]) -> int | None:
        """The record of numbers of one kind; None where it is something else."""
        kinds = set(map(type, item))
        if kinds == {float}:
            kind, code = records.FLOATS, "d"
        elif kinds == {int} and min(item) >= -_I64 and max(item) < _I64:
            kind, code = records.INTEGERS, "q"
        else:
            return None
        key = (kind, struct.pack(f"<{len(item)}{code}", *item))
        found = self._runs.get(key)
        if found is None:
            numbers: list[Any] = (
                self._tables.floats if kind == records.FLOATS else self._tables.integers
            )
            found = self._runs[key] = self._emit((kind, len(item), len(numbers)))
            numbers += item
        return found

    def _unique(self, words: tuple[int, ...]) -> int:
        found = self._by_content.get(words)
        if found is None:
            found = self._by_content[words] = self._emit(words)
        return found

    def _emit(self, words: tuple[int, ...]) -> int:
        self._words += words
        self._count += 1
        return self._count - 1
