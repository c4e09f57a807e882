"""Damaged, foreign and forged files: one clear error, quickly."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from saved_models import bytes_of, compiled_small, small_model
from tflgpu.cache.digest import digest_of
from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.parts import Part
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.saved import records
from tflgpu.saved.container import HEADER, packed, unpacked
from tflgpu.saved.index import Index
from tflgpu.saved.key import Key
from tflgpu.saved.model import compiled_in

Saved = tuple[Graph, Key, bytes]


@pytest.fixture(scope="module")
def saved() -> Saved:
    graph, compiled, key = compiled_small(small_model())
    return graph, key, bytes_of(compiled, graph, key)


def read(saved: Saved, data: bytes) -> Compiled:
    graph, key, _ = saved
    return compiled_in(memoryview(data), graph, key, "the file")


def test_the_file_itself_is_read(saved: Saved) -> None:
    assert isinstance(read(saved, saved[2]), Compiled)


def test_no_byte_can_be_changed(saved: Saved) -> None:
    good = saved[2]
    rng = random.Random(1)
    places = [*range(HEADER + 64), *(rng.randrange(len(good)) for _ in range(300))]
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(SavedModelError):
            read(saved, bytes(bad))


def test_no_byte_can_be_missing_or_added(saved: Saved) -> None:
    good = saved[2]
    rng = random.Random(2)
    lengths = [*range(HEADER + 8), len(good) - 1, *(rng.randrange(len(good)) for _ in range(100))]
    for length in lengths:
        with pytest.raises(SavedModelError):
            read(saved, good[:length])
    for more in (b"\0", b"\0" * 64, good):
        with pytest.raises(SavedModelError, match="bytes and says"):
            read(saved, good + more)


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, b"TFL3" * 100, b"tflgpu cache 2\n" * 20])
def test_another_file_is_none(saved: Saved, data: bytes) -> None:
    with pytest.raises(SavedModelError, match="no saved model"):
        read(saved, data)


def test_another_version_says_so(saved: Saved) -> None:
    with pytest.raises(SavedModelError, match="another version"):
        read(saved, saved[2].replace(b"tflgpu saved 2", b"tflgpu saved 1", 1))


# What a digest does not find: files that somebody made on purpose.


def sealed(data: bytes) -> bytes:
    """With a digest that is right."""
    body = data[48:]
    return data[:16] + digest_of(body) + body


def forged(saved: Saved, **changes: object) -> bytes:
    content = unpacked(memoryview(saved[2]))
    index = attrs.evolve(content.index, **changes)
    return b"".join(bytes(piece) for piece in packed(index, content.blobs))


def outcome(saved: Saved, data: bytes) -> str:
    """Read it: nothing but a `SavedModelError` may come out, or a compiled model."""
    try:
        found = read(saved, data)
    except SavedModelError as error:
        return str(error)
    assert isinstance(found, Compiled)
    try:
        assert all(d.kernel.body is not None for plan in found.plans for d in plan.dispatches)
    except SavedModelError as error:
        return str(error)
    return ""


def flips(good: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """The index with some bits flipped, under a digest that is right."""
    (size,) = struct.unpack_from("<Q", good, 56)
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            bad[HEADER + rng.randrange(size)] ^= 1 << rng.randrange(8)
        yield sealed(bytes(bad))


def swaps(index: Index, count: int, rng: random.Random) -> Iterator[Index]:
    """Words, numbers, places and classes in each other's place."""
    for _ in range(count):
        name = rng.choice(("words", "words", "bodies", "integers", "floats", "blobs", "classes"))
        numbers = list(getattr(index, name))
        a, b = (rng.randrange(len(numbers)) for _ in range(2))
        how = rng.randrange(4)
        if how == 0:
            numbers[a], numbers[b] = numbers[b], numbers[a]
        elif how == 1:
            numbers[a] = rng.choice((0, 1, 7, 31, 32, 33, 2**31, 2**32 - 1))
        elif how == 2:
            del numbers[min(a, b) : max(a, b)]
        else:
            numbers[a:a] = numbers[b : b + 50]
        yield attrs.evolve(index, **{name: numbers})


def test_bits_flipped_under_a_right_digest(saved: Saved) -> None:
    said = [outcome(saved, data) for data in flips(saved[2], 150, random.Random(3))]
    assert sum(map(bool, said)) > 50


def test_tables_swapped_under_a_right_digest(saved: Saved) -> None:
    content = unpacked(memoryview(saved[2]))
    said = []
    for index in swaps(content.index, 150, random.Random(4)):
        if index.blobs == content.index.blobs:
            data = b"".join(bytes(piece) for piece in packed(index, content.blobs))
            said.append(outcome(saved, data))
    assert sum(map(bool, said)) > 50


def words_of(saved: Saved) -> list[int]:
    return list(unpacked(memoryview(saved[2])).index.words)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([records.TUPLE, 1, 2**32 - 1], "damaged"),
        ([records.TUPLE, 2**32 - 1], "damaged"),
        ([records.LIST, 2, 0], "damaged"),
        ([31], "no record of kind 31"),
        ([2**32 - 1], "damaged"),
        ([records.ARRAY, 0, 0, 2**32 - 1], "damaged"),
        ([records.INTEGERS, 2**32 - 1, 0], "run of numbers"),
        ([records.INTEGERS, 1, 0, records.INTEGERS, 1, 0], "run of numbers"),
        ([records.NONE], "holds a NoneType"),
    ],
)
def test_records_that_nobody_writes(saved: Saved, more: list[int], says: str) -> None:
    assert says in outcome(saved, forged(saved, words=[*words_of(saved), *more]))


def test_no_records_at_all(saved: Saved) -> None:
    assert "end in the middle" in outcome(saved, forged(saved, words=[]))


def test_a_class_that_is_none_of_ours(saved: Saved) -> None:
    texts = unpacked(memoryview(saved[2])).index.texts
    assert "tflgpu.ir.graph.Graph" in texts
    evil = tuple("subprocess.Popen" if t == "tflgpu.ir.graph.Graph" else t for t in texts)
    assert "'subprocess.Popen'" in outcome(saved, forged(saved, texts=evil))


def test_a_class_whose_fields_have_changed(saved: Saved) -> None:
    texts = unpacked(memoryview(saved[2])).index.texts
    older = tuple("next_name" if t == "next_id" else t for t in texts)
    assert "does not have in that form" in outcome(saved, forged(saved, texts=older))


def test_what_many_share_costs_no_more_than_the_file(saved: Saved) -> None:
    """Tuples of tuples of one thing: what they stand for is far larger than the file."""
    bomb: list[int] = [records.NONE]
    for i in range(2000):
        bomb += [records.TUPLE, 20, *[i] * 20]
    assert "holds a tuple" in outcome(saved, forged(saved, words=bomb))
    # In a field that may be no tuple: neither the check nor the message goes through it.
    kinds = list(class_names(saved))
    at = kinds.index("tflgpu.compiler.parts.Part")
    part = [records.OBJECT + at, *[2000] * len(attrs.fields(Part))]
    assert "Part.nodes is a tuple" in outcome(saved, forged(saved, words=[*bomb, *part]))


def class_names(saved: Saved) -> Iterator[str]:
    index = unpacked(memoryview(saved[2])).index
    at = 0
    while at < len(index.classes):
        yield index.texts[index.classes[at]]
        at += 2 + index.classes[at + 1]


def test_a_body_is_read_when_it_is_asked_for(saved: Saved) -> None:
    """What is wrong with it is said then, as an error of ours."""
    index = unpacked(memoryview(saved[2])).index
    found = read(saved, forged(saved, bodies=[31] * len(index.bodies)))
    (kernel, *_) = (d.kernel for plan in found.plans for d in plan.dispatches)
    assert kernel.name
    with pytest.raises(SavedModelError, match="no record of kind 31"):
        _ = kernel.body


def test_bodies_lie_one_after_another(saved: Saved) -> None:
    index = unpacked(memoryview(saved[2])).index
    words = list(index.words)
    first = words.index(records.KERNEL)
    assert "the body of a kernel" in outcome(saved, forged(saved, bodies=index.bodies[:5]))
    words[first + 5] += 1
    assert "damaged" in outcome(saved, forged(saved, words=words))


def test_arrays_are_as_large_as_their_bytes(saved: Saved) -> None:
    content = unpacked(memoryview(saved[2]))
    dtype = content.index.texts.index("<f4")
    numbers = [*content.index.integers, 2**40, -1]
    huge, negative = len(numbers) - 2, len(numbers) - 1
    for sizes in ((huge,), (huge, huge), (negative,), (huge, negative)):
        words = [*words_of(saved), records.ARRAY, dtype, 0, len(sizes), *sizes]
        assert "damaged" in outcome(saved, forged(saved, words=words, integers=numbers))


def test_weights_lie_in_the_file_at_multiples_of_64_bytes(saved: Saved) -> None:
    data = np.frombuffer(saved[2], np.uint8)
    found = compiled_in(data.data, saved[0], saved[1], "the file")
    start = data.ctypes.data
    places = [a.ctypes.data - start for plan in found.plans for a in plan.constants]
    assert places
    assert all(0 < place < len(saved[2]) and place % 64 == 0 for place in places)
