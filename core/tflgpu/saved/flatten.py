"""Turns values into records: each value once, after those that it refers to, without recursion.

Nothing here recurses: expressions of kernels may be thousands deep.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import SavedModelError
from tflgpu.errors.blame import shown
from tflgpu.ir.graph import Graph
from tflgpu.language.kernel import Kernel
from tflgpu.saved import records
from tflgpu.saved.classes import Classes, SavedClass, name_of
from tflgpu.saved.container import Index
from tflgpu.saved.kernel import CodeOf
from tflgpu.saved.source import Source
from tflgpu.values import define

#: What JSON has.
_ATOMS = frozenset({type(None), bool, int, float, str})
#: What keys of mappings and members of sets may be.
_KEYS = (str, int, type(None))
#: Contents that lie in memory as they would in a file.
_PLAIN_KINDS = "biufc"


@define(eq=False)
class Flat:
    """Records, the classes that they name, and the arrays that they refer to. Bodies of kernels
    have records of their own, and share the rest."""

    records: list[Any] = attrs.Factory(list)
    classes: list[list[str]] = attrs.Factory(list)
    numbers: dict[type, int] = attrs.Factory(dict)
    blobs: list[memoryview] = attrs.Factory(list)

    def index(self, key: tuple[tuple[str, str], ...] = ()) -> Index:
        """The index of a file of this."""
        return Index(key, self.classes, self.records)

    def class_number(self, known: SavedClass) -> int:
        """The place of a class among those that records name."""
        found = self.numbers.setdefault(known.kind, len(self.classes))
        if found == len(self.classes):
            self.classes.append([known.name, *known.fields])
        return found

    def blob(self, data: memoryview | bytes) -> int:
        """The place of an array's bytes."""
        self.blobs.append(memoryview(data))
        return len(self.blobs) - 1


class Flattener:
    """Writes records of values."""

    def __init__(
        self,
        classes: Classes,
        given: Graph | None = None,
        code_of: CodeOf | None = None,
        source: Source | None = None,
        flat: Flat | None = None,
        *,
        bodies: bool = False,
    ) -> None:
        """Nothing yet.

        Args:
            classes: What there may be values of.
            given: A graph whose constants, and what the file says of its nodes, are named and not
                written; None where all is to be written.
            code_of: Gives a device's code of a kernel, for the file to have in the place of its
                body.
            source: Where ``given`` was built from. Then constants are named as parts of its bytes.
            flat: Where records go; None is a new one.
            bodies: Whether kernels have their statements beside the device's code.
        """
        self._source = source
        self._classes = classes
        self._code_of = code_of
        self._bodies = bodies
        self._flat = Flat() if flat is None else flat
        self._by_content: dict[str, int] = {}
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
        stack, open_ = [root], set[int]()
        apart: dict[int, tuple[tuple[Any, ...], list[Any], bool]] = {}
        while stack:
            item = stack[-1]
            if self._place(item) is not None:
                stack.pop()
                continue
            if id(item) not in apart:
                apart[id(item)] = self._apart(item)
            words, parts, by_value = apart[id(item)]
            # Parts may be objects that were only just made.
            self._kept.append(parts)
            waiting = [part for part in parts if self._place(part) is None]
            if waiting:
                if id(item) in open_:
                    raise SavedModelError(f"{_told(item)} is part of itself, and cannot be saved")
                open_.add(id(item))
                stack += waiting[::-1]
                continue
            open_.discard(id(item))
            words = (*words, *map(self._place, parts))
            self._keep(item, self._unique(words) if by_value else self._emit(words))
            stack.pop()
        return self._flat

    # Inside

    def _name_given(self, graph: Graph) -> None:
        for value in graph.values.values():
            # Looking up what is no part of the bytes takes building the graph.
            held = value.contents
            if isinstance(held, np.ndarray) and (
                self._source is None or held.dtype.kind not in _PLAIN_KINDS
            ):
                self._name(held, records.GIVEN_DATA, value.id)
        for place, node in enumerate(graph.nodes):
            if node.source is not None:
                self._name(node.source, records.GIVEN_SOURCE, place)

    def _name(self, item: Any, kind: str, number: int) -> None:
        if id(item) not in self._by_identity:
            self._keep(item, self._emit((kind, number)))

    def _place(self, item: Any) -> int | None:
        if type(item) in _ATOMS:
            return self._unique(item)
        return self._by_identity.get(id(item))

    def _keep(self, item: Any, place: int) -> None:
        self._by_identity[id(item)] = place
        self._kept.append(item)

    def _apart(self, item: Any) -> tuple[tuple[Any, ...], list[Any], bool]:
        """How a value's record begins; the values whose records it names behind that; and whether
        equal ones may be one."""
        kind = type(item)
        if kind is tuple:
            numbers = bool(item) and set(map(type, item)) in ({int}, {float})
            if numbers:
                return (records.NUMBERS, *item), [], True
            return (records.TUPLE,), list(item), True
        if kind is list:
            return (records.LIST,), list(item), False
        if kind is frozenset:
            _check_keys(item)
            members = sorted(item, key=lambda each: (type(each).__name__, repr(each)))
            return (records.SET,), members, True
        if isinstance(item, Mapping):
            _check_keys(item)
            return (records.MAPPING,), [each for pair in item.items() for each in pair], False
        if isinstance(item, Kernel):
            parts = [item.name, item.workgroup, item.buffers, item.shared]
            return (records.KERNEL, *self._body_or_code(item)), parts, False
        known = self._classes.of(kind)
        if known is not None:
            return (self._flat.class_number(known),), known.parts(item), known.by_value
        if isinstance(item, enum.Enum) and self._classes.kind(name_of(kind)) is kind:
            return (records.MEMBER, name_of(kind), item.name), [], True
        if isinstance(item, (np.ndarray, np.generic)) and item.dtype.kind in _PLAIN_KINDS:
            return self._array(item), [], False
        if isinstance(item, np.dtype) and item.kind in _PLAIN_KINDS:
            return (records.DTYPE, item.newbyteorder("<").str), [], True
        if kind is bytes or (isinstance(item, memoryview) and self._whole):
            return (records.BYTES, self._flat.blob(item)), [], False
        raise SavedModelError(
            f"a saved model cannot have a {name_of(kind)}, and this one would: {_told(item)}"
        )

    def _body_or_code(self, item: Kernel) -> tuple[int | None, int | None]:
        code = None if self._code_of is None else self._code_of(item)
        place = None if code is None else self._flat.blob(code)
        if place is not None and not self._bodies:
            return None, place
        shared = attrs.evolve(self._flat, records=[])
        body = Flattener(self._classes, flat=shared).flat(item.body)
        return self._flat.blob(json.dumps(body.records, separators=(",", ":")).encode()), place

    def _array(self, item: Any) -> tuple[Any, ...]:
        dtype, shape = item.dtype.newbyteorder("<"), [int(size) for size in item.shape]
        if self._source is not None and isinstance(item, np.ndarray):
            start = self._source.place(item)
            if start is not None and item.dtype.str == dtype.str:
                return (records.GIVEN_ARRAY, dtype.str, start, *shape)
        data = np.ascontiguousarray(item, dtype)
        blob = self._flat.blob(data.reshape(-1).view(np.uint8).data)
        if isinstance(item, np.generic):
            return (records.NUMBER, dtype.str, blob)
        return (records.ARRAY, dtype.str, blob, *shape)

    def _unique(self, record: Any) -> int:
        # As text, since 1, 1.0 and True are equal, and a NaN is not.
        content = repr(record)
        found = self._by_content.get(content)
        if found is None:
            found = self._by_content[content] = self._emit(record)
        return found

    def _emit(self, record: Any) -> int:
        self._flat.records.append(record)
        return len(self._flat.records) - 1


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        if not isinstance(key, _KEYS):
            raise SavedModelError(
                f"a saved model has texts and whole numbers as keys, and {_told(key)} is neither"
            )


def _told(value: Any) -> str:
    """A value in a message. What is made of other values may stand for far more than there are, so
    that only its type is said."""
    return shown(value) if type(value) in _ATOMS else f"a {type(value).__name__}"
