"""Turns records into values, each from records before it.

No record can name a later one or itself, so that nothing is part of itself and nothing recurses.
Only classes of the table are made, by their own constructors: no code comes from the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import SavedModelError, TflgpuError
from tflgpu.errors.blame import shown
from tflgpu.language.kernel import Stmt
from tflgpu.saved import records
from tflgpu.saved.classes import Classes, SavedClass
from tflgpu.saved.container import Content
from tflgpu.saved.kernel import ReadsBody, SavedKernel, body_elsewhere
from tflgpu.saved.model_lookup import ModelLookup

_Refs = list[Any]
#: Of the values whose records are named.
_CONTAINERS: Mapping[str, Callable[[_Refs], Any]] = {
    records.TUPLE: tuple,
    records.LIST: list,
    records.SET: frozenset,
    records.MAPPING: lambda items: dict(zip(items[::2], items[1::2], strict=True)),
}


class Rebuilder:
    """Makes values of a file's records. ``given`` is the graph that was compiled, or what has
    it."""

    def __init__(self, content: Content, classes: Classes, given: ModelLookup) -> None:
        self._content = content
        self._blobs = content.blobs
        self._table = classes
        self._given = given
        self._classes = [_class(classes, *words) for words in content.index.classes]

    def root(self) -> Any:
        """The last record's value.

        Raises:
            SavedModelError: the records are not such as tflgpu writes.
        """
        try:
            return self.read(self._content.index.records)
        except SavedModelError:
            raise
        # Errors of a constructor or NumPy for values that no writer makes.
        except (TflgpuError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise SavedModelError(
                f"a saved model is damaged: {type(error).__name__}: {error}"
            ) from error

    def read(self, written: Sequence[Any]) -> Any:
        """The value of the last of some records."""
        made: list[Any] = []
        classes = self._classes
        # Made in each reading: kept here, they and this object would keep each other.
        others: Mapping[str, Callable[..., Any]] = {
            records.NUMBERS: lambda *numbers: numbers,
            records.BYTES: lambda blob: bytes(self._blobs[blob]),
            records.MEMBER: self._member,
            records.ARRAY: self._array,
            records.NUMBER: lambda dtype, blob: self._array(dtype, blob)[()],
            records.DTYPE: np.dtype,
            records.GIVEN_DATA: self._given.data,
            records.GIVEN_SOURCE: self._given.source,
            records.GIVEN_ARRAY: self._given_array,
        }
        for record in written:
            if type(record) is not list:
                made.append(record)
                continue
            kind = record[0]
            if type(kind) is int:
                made.append(classes[kind].make(*[made[ref] for ref in record[1:]]))
            elif kind in _CONTAINERS:
                made.append(_CONTAINERS[kind]([made[ref] for ref in record[1:]]))
            elif kind == records.KERNEL:
                _, body, code, *refs = record
                made.append(self._kernel(body, code, [made[ref] for ref in refs]))
            else:
                made.append(others[kind](*record[1:]))
        return made[-1]

    def _kernel(self, body: int | None, code: int | None, fields: _Refs) -> SavedKernel:
        given = dict(zip(("name", "workgroup", "buffers", "shared"), fields, strict=True))
        if body is None:
            read: ReadsBody = body_elsewhere
        else:
            content, table, lookup = self._content, self._table, self._given

            def read(kernel: SavedKernel) -> tuple[Stmt, ...]:
                found: tuple[Stmt, ...] = Rebuilder(content, table, lookup).read(
                    json.loads(bytes(content.blobs[body]))
                )
                return found

        return SavedKernel(given, read, None if code is None else bytes(self._blobs[code]))

    def _member(self, name: str, member: str) -> Any:
        kind = self._table.kind(name)
        if kind is None:
            raise SavedModelError(f"a saved model is damaged: there is no {shown(name)}")
        return kind[member]

    def _array(self, dtype: str, blob: int, *shape: int) -> Any:
        return np.frombuffer(self._blobs[blob], dtype).reshape(shape)

    def _given_array(self, dtype: str, start: int, *shape: int) -> Any:
        data = self._given.bytes_at(start, math.prod(shape) * np.dtype(dtype).itemsize)
        return np.frombuffer(data, dtype).reshape(shape)


def _class(classes: Classes, name: str, *fields: str) -> SavedClass:
    known = classes.named(name)
    if known is None or known.fields != fields:
        raise SavedModelError(
            f"a saved model has values of {shown(name)}, which this version of tflgpu "
            "does not have in that form; make it again with `tflgpu compile`"
        )
    return known
