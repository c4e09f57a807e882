"""Turns records into values, each from records before it.

No record can name a later one or itself, so that nothing is part of itself and nothing recurses;
and a file of n words makes at most n values. Only classes of the table are made, by their own
constructors: no code comes from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tflgpu.errors import SavedModelError, TflgpuError
from tflgpu.errors.blame import shown
from tflgpu.language.kernel import Kernel, Stmt
from tflgpu.saved import records
from tflgpu.saved.checks import told
from tflgpu.saved.classes import Classes, SavedClass
from tflgpu.saved.container import Content
from tflgpu.saved.kernel import ReadsBody, SavedKernel
from tflgpu.saved.model_lookup import ModelLookup

_DTYPES = {
    np.dtype(kind).newbyteorder("<").str: np.dtype(kind).newbyteorder("<")
    for kind in (
        *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
        *("f2", "f4", "f8", "c8", "c16"),
    )
}
#: Words that follow the kind, where it is not the first of them that says how many.
_LENGTHS = {
    records.NONE: 0, records.TRUE: 0, records.FALSE: 0, records.INTEGER: 1, records.FLOAT: 1,
    records.TEXT: 1, records.BYTES: 1, records.MEMBER: 2, records.NUMBER: 2, records.DTYPE: 1,
    records.LARGE: 1, records.GIVEN_DATA: 1, records.GIVEN_SOURCE: 1,
    records.INTEGERS: 2, records.FLOATS: 2,
    records.KERNEL: 7,
}  # fmt: skip
_COUNTED = frozenset({records.TUPLE, records.LIST, records.MAPPING, records.SET})


def _damaged(what: str) -> NoReturn:
    raise SavedModelError(f"a saved model is damaged: {what}")


def _body_elsewhere(kernel: SavedKernel) -> NoReturn:
    raise SavedModelError("this kernel's statements are not in its file")


class Rebuilder:
    """Makes values of a file's records. ``given`` is the graph that was compiled, or what has
    it."""

    def __init__(self, content: Content, classes: Classes, given: ModelLookup) -> None:
        self._content = content
        self._index = content.index
        self._table = classes
        self._given = given
        self._classes = self._read_classes()
        self._made: list[Any] = []
        self._bodies = 0  # where the last body ended
        self._taken = [0, 0]  # where runs of integers and of floats have ended

    def _makers(self) -> dict[int, Callable[[list[int]], Any]]:
        # Asked for in each reading: kept here, they and this object would keep each other.
        return {
            records.NONE: lambda w: None,
            records.TRUE: lambda w: True,
            records.FALSE: lambda w: False,
            records.INTEGER: lambda w: self._index.integers[w[0]],
            records.FLOAT: lambda w: self._index.floats[w[0]],
            records.TEXT: lambda w: self._index.texts[w[0]],
            records.BYTES: lambda w: bytes(self._content.blobs[w[0]]),
            records.MEMBER: self._member,
            records.NUMBER: self._number,
            records.DTYPE: lambda w: _DTYPES[self._index.texts[w[0]]],
            records.LARGE: self._large,
            records.GIVEN_DATA: self._given_data,
            records.GIVEN_SOURCE: self._given_source,
            records.ARRAY: self._array,
            records.GIVEN_ARRAY: self._given_array,
            records.TUPLE: lambda w: tuple(self._refs(w)),
            records.LIST: self._refs,
            records.INTEGERS: lambda w: self._run(w, self._index.integers, 0),
            records.FLOATS: lambda w: self._run(w, self._index.floats, 1),
            records.MAPPING: self._mapping,
            records.KERNEL: self._kernel,
            records.SET: self._set,
        }

    def root(self) -> Any:
        """The last record's value.

        Raises:
            SavedModelError: the records are not such as tflgpu writes.
        """
        return self._guarded(self._index.words)

    def _guarded(self, words: Sequence[int]) -> Any:
        try:
            with self._table.checks.reading():
                return self._read(words)
        except SavedModelError:
            raise
        # Errors of a constructor or NumPy for values that no writer makes.
        except (
            TflgpuError,
            LookupError,
            ValueError,
            TypeError,
            ArithmeticError,
            AttributeError,
        ) as error:
            raise SavedModelError(
                f"a saved model is damaged: record {len(self._made)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _read(self, words: Sequence[int]) -> Any:
        made, classes, makers = self._made, self._classes, self._makers()
        # Half of the records are these: a place in a table.
        tables = {records.TEXT: self._index.texts, records.INTEGER: self._index.integers}
        at, end = 0, len(words)
        while at < end:
            kind = words[at]
            at += 1
            if kind in tables:
                made.append(tables[kind][words[at]])
                at += 1
                continue
            if kind >= records.OBJECT:
                known = classes[kind - records.OBJECT]
                stop = at + len(known.fields)
                made.append(_object(known, [made[ref] for ref in words[at:stop]]))
            else:
                length = _LENGTHS.get(kind)
                if length is None:
                    at, stop = _extent(kind, words, at)
                else:
                    stop = at + length
                made.append(makers[kind](list(words[at:stop])))
            at = stop
        if at != end or not made:
            _damaged("its records end in the middle of one")
        return made[-1]

    def _refs(self, words: list[int]) -> list[Any]:
        return [self._made[ref] for ref in words]

    def _kernel(self, words: list[int]) -> SavedKernel:
        start, count, code = words[4:]
        bodies = self._index.bodies
        if not count and not code:
            _damaged("a kernel without a body and without code")
        if start != self._bodies or start + count > len(bodies):
            _damaged("the body of a kernel does not lie in it")
        self._bodies = start + count
        known = self._table.of(Kernel)
        assert known is not None
        given = dict(zip(known.fields, self._refs(words[:4]), strict=False))
        check_fields(known, given)
        blob = None if code == 0 else bytes(self._content.blobs[code - 1])
        read = self._body(np.asarray(bodies[start : start + count]))
        return SavedKernel(given, read if count else _body_elsewhere, blob)

    def _body(self, words: npt.NDArray[Any]) -> ReadsBody:
        content, table, given = self._content, self._table, self._given

        def read(kernel: SavedKernel) -> tuple[Stmt, ...]:
            reader = Rebuilder(content, table, given)
            body = reader._guarded(words.tolist())
            known = table.of(Kernel)
            assert known is not None
            check_fields(known, {"body": body})
            found: tuple[Stmt, ...] = body
            return found

        return read

    def _run(self, words: list[int], numbers: Sequence[Any], which: int) -> tuple[Any, ...]:
        count, start = words
        if start < self._taken[which] or start + count > len(numbers):
            _damaged("a run of numbers that does not lie in it, or that another has a part of")
        self._taken[which] = start + count
        return tuple(numbers[start : start + count])

    def _mapping(self, words: list[int]) -> dict[Any, Any]:
        items = self._refs(words)
        self._check_keys(items[::2])
        return dict(zip(items[::2], items[1::2], strict=True))

    def _set(self, words: list[int]) -> frozenset[Any]:
        items = self._refs(words)
        self._check_keys(items)
        return frozenset(items)

    @staticmethod
    def _check_keys(keys: Sequence[Any]) -> None:
        """Only what takes no time to compare may be a key."""
        if not all(map(isinstance, keys, repeat(records.KEYS))):
            _damaged("a key that is neither a text nor a number")

    def _member(self, words: list[int]) -> Any:
        name, member = (self._index.texts[word] for word in words)
        kind = self._table.enum(name)
        if kind is None or member not in kind.__members__:
            _damaged(f"there is no {shown(name)} with a member {shown(member)}")
        return kind[member]

    def _array(self, words: list[int]) -> Any:
        texts, integers = self._index.texts, self._index.integers
        shape = tuple(integers[word] for word in words[3:])
        data = self._content.blobs[words[1]]
        if min(shape, default=0) < 0:
            _damaged("an array of a negative size")
        return np.frombuffer(data, _DTYPES[texts[words[0]]]).reshape(shape)

    def _given_array(self, words: list[int]) -> Any:
        integers, dtype = self._index.integers, _DTYPES[self._index.texts[words[0]]]
        shape = tuple(integers[word] for word in words[3:])
        if min(shape, default=0) < 0:
            _damaged("an array of a negative size")
        data = self._given.bytes_at(integers[words[1]], math.prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(shape)

    def _number(self, words: list[int]) -> Any:
        data = self._content.blobs[words[1]]
        (number,) = np.frombuffer(data, _DTYPES[self._index.texts[words[0]]])
        return number

    def _large(self, words: list[int]) -> int:
        text = self._index.texts[words[0]]
        if len(text) > 64:
            _damaged("a number of many digits")
        return int(text, 16)

    def _given_data(self, words: list[int]) -> Any:
        data = self._given.data(self._index.integers[words[0]])
        if data is None:
            _damaged("it names a constant of the model that is none")
        return data

    def _given_source(self, words: list[int]) -> Any:
        place = self._index.integers[words[0]]
        return self._given.source(place) if place >= 0 else _damaged("a negative place")

    def _read_classes(self) -> list[SavedClass]:
        words, texts = self._index.classes, self._index.texts
        found: list[SavedClass] = []
        at = 0
        try:
            while at < len(words):
                name, count = texts[words[at]], words[at + 1]
                fields = tuple(texts[word] for word in words[at + 2 : at + 2 + count])
                at += 2 + count
                known = self._table.named(name)
                if known is None or known.fields != fields:
                    raise SavedModelError(
                        f"a saved model has values of {shown(name)}, which this version of tflgpu "
                        "does not have in that form; make it again with `tflgpu compile`"
                    )
                found.append(known)
        except LookupError:
            _damaged("its table of classes")
        return found


def _extent(kind: int, words: Sequence[int], at: int) -> tuple[int, int]:
    """Where a record of variable length begins and ends."""
    if kind in _COUNTED:
        return at + 1, at + 1 + words[at]
    if kind in (records.ARRAY, records.GIVEN_ARRAY):
        return at, at + 3 + words[at + 2]
    return _damaged(f"there is no record of kind {kind}")


def _object(known: SavedClass, parts: list[Any]) -> Any:
    if len(parts) != len(known.fields):
        _damaged(f"a {known.name} ends in the middle")
    for check, part in zip(known.checks, parts, strict=True):
        if check is not None and not check(part):
            check_fields(known, dict(zip(known.fields, parts, strict=True)))  # says which
    return known.make(*parts)


def check_fields(known: SavedClass, values: Mapping[str, Any]) -> None:
    """Some fields of a class, as `_object` looks at all.

    Raises:
        SavedModelError: one is not what its annotation says.
    """
    for name, value in values.items():
        check = known.checks[known.fields.index(name)]
        if check is not None and not check(value):
            _damaged(f"{known.name}.{name} is {told(value)}")
