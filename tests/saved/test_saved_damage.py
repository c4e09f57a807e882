"""Damaged and foreign files: one clear error, quickly."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import attrs
import numpy as np
import pytest
from tflgpu.compiler.parts import Compiled
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.saved.container import HEADER, packed, unpacked
from tflgpu.saved.key import Key
from tflgpu.saved.model import compiled_in

from tests.saved import damage
from tests.saved.saved_models import bytes_of, compiled_small, convolved

Saved = tuple[Graph, Key, bytes]


@pytest.fixture(scope="module")
def saved() -> Saved:
    graph, compiled, key = compiled_small(convolved())
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
        read(saved, saved[2].replace(b"tflgpu saved 3", b"tflgpu saved 2", 1))


# What a right digest leaves: files of other versions of the code.


def forged(saved: Saved, **changes: object) -> bytes:
    content = unpacked(memoryview(saved[2]))
    index = attrs.evolve(content.index, **changes)
    return b"".join(bytes(piece) for piece in packed(index, content.blobs))


def refusal(saved: Saved, **changes: object) -> str:
    with pytest.raises(SavedModelError) as raised:
        read(saved, forged(saved, **changes))
    return str(raised.value)


def classes_of(saved: Saved) -> list[list[str]]:
    return [list(words) for words in unpacked(memoryview(saved[2])).index.classes]


def test_a_class_that_is_none_of_ours(saved: Saved) -> None:
    classes = classes_of(saved)
    (graph,) = (words for words in classes if words[0] == "tflgpu.ir.graph.Graph")
    graph[0] = "subprocess.Popen"
    assert "'subprocess.Popen'" in refusal(saved, classes=classes)


def test_a_class_whose_fields_have_changed(saved: Saved) -> None:
    classes = classes_of(saved)
    (graph,) = (words for words in classes if words[0] == "tflgpu.ir.graph.Graph")
    graph[graph.index("next_id")] = "next_name"
    assert "does not have in that form" in refusal(saved, classes=classes)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([["tuple", 2**32]], "damaged"),
        ([["no such kind"]], "damaged"),
        ([[2**32]], "damaged"),
        ([["member", "tflgpu.no.Such", "X"]], "damaged"),
        ([None], "holds a NoneType"),
    ],
)
def test_records_that_no_writer_makes(saved: Saved, more: list[object], says: str) -> None:
    content = unpacked(memoryview(saved[2]))
    assert says in refusal(saved, records=[*content.index.records, *more])


def test_what_many_share_costs_no_more_than_the_file(saved: Saved) -> None:
    """Tuples of tuples of one thing: what they stand for is far larger than the file."""
    bomb = [None, *(["tuple", *[i] * 20] for i in range(2000))]
    assert "holds a tuple" in refusal(saved, records=bomb)


def test_a_body_is_read_when_it_is_asked_for(saved: Saved) -> None:
    content = unpacked(memoryview(saved[2]))
    kernels = [r for r in content.index.records if isinstance(r, list) and r[0] == "kernel"]
    blobs = list(content.blobs)
    for _, body, *_ in kernels:
        blobs[body] = memoryview(b"no records")
    data = b"".join(bytes(piece) for piece in packed(content.index, blobs))
    found = read(saved, data)
    (kernel, *_) = (d.kernel for plan in found.plans for d in plan.dispatches)
    assert kernel.name
    with pytest.raises(ValueError, match="Expecting value"):
        _ = kernel.body


def test_weights_lie_in_the_file_at_multiples_of_64_bytes(saved: Saved) -> None:
    data = np.frombuffer(saved[2], np.uint8)
    found = compiled_in(data.data, saved[0], saved[1], "the file")
    start = data.ctypes.data
    places = [a.ctypes.data - start for plan in found.plans for a in plan.constants]
    assert places
    assert all(0 < place < len(saved[2]) and place % 64 == 0 for place in places)


# Damaged files by the hundred, and by thousands where everything is asked (`damage.py`).


EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))


def test_damaged_files_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    count = 2500 if EVERYTHING else 36
    said = damage.run(tmp_path, count, 3)
    assert sum(said.values()) == count
    assert set(said) <= {"made anew", "read, and not damaged"}
    assert said["made anew"] > 0.9 * count


def test_the_check_finds_what_is_believed(tmp_path: Path) -> None:
    """A reader that takes no heed of digests would be found out."""
    kept = damage.Damage(tmp_path, "cpu_ref", 1)
    kept.right = b"another"
    with (
        damage.GpuDelegate(**kept.options) as delegate,
        pytest.raises(AssertionError, match="was believed"),
    ):
        kept.case(lambda good, other, rng: good, damage.random.Random(1), delegate)
