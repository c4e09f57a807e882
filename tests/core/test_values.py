"""Methods that are made when they are first called are those that attrs makes at once."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
from tflgpu import values


def field_of_key() -> Any:
    return attrs.field(default="B", eq=str.lower)


def made(define: Any, frozen: Any) -> list[type]:
    """The same classes by either."""

    @frozen
    class Shown:
        plain: int
        of_key: str = field_of_key()
        unseen: int = attrs.field(default=1, eq=False)
        _hidden: int = attrs.field(default=2, repr=False)

    @frozen
    class Below(Shown):
        more: int = 3

    @frozen(eq=False)
    class Itself:
        plain: int

    @frozen(kw_only=True)
    class Own:
        plain: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    @define
    class Changing:
        plain: int

    @frozen
    class Empty:
        pass

    return [Shown, Below, Itself, Own, Changing, Empty]


def items(kind: type[Any]) -> list[Any]:
    if not attrs.fields(kind):
        return [kind(), kind()]
    found = [kind(plain=1), kind(plain=1), kind(plain=2)]
    if len(attrs.fields(kind)) > 1:
        found += [kind(1, "b"), kind(1, "c"), kind(1, "B", 5), kind(1, "B", 1, 6)]
    return found


def said(kind: type[Any]) -> list[Any]:
    """What the methods say, of any two values."""
    found: list[Any] = [kind.__hash__ is None]
    for a in items(kind):
        found.append(repr(a).rpartition("<locals>.")[2])
        for b in items(kind):
            found += [a == b, a != b, kind.__hash__ is None or (hash(a) == hash(b))]
        found += [a == 5, a != 5]
    return found


@pytest.mark.parametrize("which", range(6))
def test_it_is_what_attrs_makes(which: int) -> None:
    ours = made(values.define, values.frozen)[which]
    theirs = made(attrs.define, attrs.frozen)[which]
    for first in ("__repr__", "__eq__", "__ne__", "__hash__"):
        # Whichever is called first puts all of them in place.
        kind = made(values.define, values.frozen)[which]
        if getattr(kind, first) is not None:
            one = items(kind)[0]
            getattr(one, first)(*([one] if first in {"__eq__", "__ne__"} else []))
        assert said(kind) == said(theirs)
    assert said(ours) == said(theirs)
    assert [f.name for f in attrs.fields(ours)] == [f.name for f in attrs.fields(theirs)]


def test_nothing_is_made_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = values._real
    monkeypatch.setattr(values, "_real", lambda *a: calls.append(a[0].__name__) or real(*a))
    below = made(values.define, values.frozen)[1]
    one = below(1)
    assert calls == []
    assert {one: 2}[below(1)] == 2
    assert one != 1
    repr(one)
    assert calls == ["Below"]
    assert below.__eq__.__qualname__.endswith("Below.__eq__")


def test_threads_get_the_same_hash() -> None:
    for _ in range(20):
        kind = made(values.define, values.frozen)[0]
        found, start = [], threading.Barrier(4)

        def ask(
            kind: type[Any] = kind, found: list[int] = found, start: threading.Barrier = start
        ) -> None:
            start.wait()
            found.append(hash(kind(1)))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({*found, hash(kind(1))}) == 1


def test_what_attrs_decides_in_other_ways_is_left_to_it() -> None:
    @values.frozen(order=True)
    class Ordered:
        plain: int

    class Broken(Exception):
        pass

    assert Ordered(1) < Ordered(2)
    kept = values.define(Broken)
    assert issubclass(kept, Exception)

    @values.define(eq=False)
    class Base:
        plain: int

    @values.define
    class Heir(Base):
        more: int = 1

    assert Heir(1) == Heir(1)
    assert Heir.__hash__ is None
