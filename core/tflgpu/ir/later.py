"""Mappings and sequences whose contents are made when something is asked of them."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")


class LaterMapping(Mapping[K, V]):
    """A mapping that ``make`` gives at its first use."""

    def __init__(self, make: Callable[[], Mapping[K, V]]) -> None:
        self._found = functools.cache(make)

    def __getitem__(self, key: K) -> V:
        return self._found()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


class LaterSequence(Sequence[V]):
    """A sequence of ``count`` items, each of which `item` gives when it is asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    @abstractmethod
    def item(self, index: int) -> V:
        """The one at an index, which is from 0 to below the count."""

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> V: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[V]: ...

    def __getitem__(self, index: int | slice) -> V | Sequence[V]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(index)
        return self.item(place)
