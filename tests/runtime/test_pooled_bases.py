"""What backends whose memory lies in pools find in the core, on heaps that are a few lines of
NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.backend_kit import heaps, split_copy
from tflgpu.backend_kit.heaps import HeapKind, PieceCopy, PooledBuffer
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pooled_recording import output_sets
from tflgpu.backend_kit.pools import PooledRegion
from tflgpu.backend_kit.run_commands import Between, Launch, Script
from tflgpu.conformance.plans import chain
from tflgpu.errors import DeviceError


class Block:
    """Memory; only the host's is seen by the host."""

    def __init__(self, kind: HeapKind, nbytes: int) -> None:
        self.kind, self.whole, self.is_free = kind, np.full(nbytes, 7, np.uint8), False

    @property
    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        assert self.kind is not HeapKind.DEVICE
        return self.whole

    def release(self) -> None:
        self.is_free = True


class Heaps(heaps.Heaps[Block]):
    """A device whose copies are NumPy's."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(alignment=16, limit=1 << 20, **facts)
        self.blocks: list[Block] = []
        self.copied: list[int] = []

    def _block(self, kind: HeapKind, nbytes: int) -> Block:
        self.blocks.append(Block(kind, nbytes))
        return self.blocks[-1]

    def _copy(
        self, piece: PooledRegion[Block], copies: Sequence[PieceCopy[Block]], *, to_host: bool
    ) -> None:
        for c in copies:
            at, start = c.region.offset + c.at, piece.offset + c.start
            there = c.region.block.whole[at : at + c.nbytes]
            here = piece.block.bytes[start : start + c.nbytes]
            (here if to_host else there)[:] = there if to_host else here
        self.copied.append(sum(c.nbytes for c in copies))


def test_copies_go_by_pieces_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heaps, "PIECE", 10)
    device = Heaps()
    arrays = [np.arange(n, dtype=np.uint8) for n in (7, 0, 25)]
    pool = device.pool(HeapKind.DEVICE)
    regions = [pool.region(f"r{a.size}", a.size) for a in arrays]
    pool.allocate()
    device.fill(regions, arrays, HeapKind.DEVICE)
    assert device.copied == [10, 10, 10, 2]
    for region, array in zip(regions, arrays, strict=True):
        assert (device.download(region, region.nbytes) == array).all()
    assert [b.is_free for b in device.blocks if b.kind is HeapKind.HOST] == [True] * 3
    assert not device.blocks[0].is_free


@pytest.mark.parametrize("kind", [HeapKind.HOST, HeapKind.DEVICE])
def test_large_constants_are_copied_by_several_threads(
    kind: HeapKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heaps, "PIECE", 60_000)
    monkeypatch.setattr(split_copy, "PART", 4096)
    monkeypatch.setattr(split_copy, "_processors", lambda: 16)
    device, threads = Heaps(), set()
    begin = split_copy._Helper.begin

    def noted(helper: Any, target: Any, source: Any) -> None:
        threads.add(helper)
        begin(helper, target, source)

    monkeypatch.setattr(split_copy._Helper, "begin", noted)
    arrays = [np.random.default_rng(n).integers(0, 256, n, np.uint8) for n in (8000, 150_001, 5)]
    pool = device.pool(kind)
    regions = [pool.region(f"r{a.size}", a.size) for a in arrays]
    pool.allocate()
    device.fill(regions, arrays, kind)
    assert len(threads) == 5  # and the caller's own
    for region, array in zip(regions, arrays, strict=True):
        there = region.block.whole[region.offset : region.offset + region.nbytes]
        np.testing.assert_array_equal(there, array)


def test_what_fails_in_the_middle_leaves_nothing() -> None:
    class Failing(Heaps):
        def _copy(self, *args: Any, **kwargs: Any) -> None:
            raise DeviceError("lost")

    device = Failing()
    with pytest.raises(DeviceError, match="lost"):
        device.zeros("a buffer", 64, HeapKind.DEVICE)
    assert [b.is_free for b in device.blocks] == [True, True]


@pytest.mark.parametrize("kind", [HeapKind.HOST, HeapKind.DEVICE])
def test_buffers_are_written_and_read_where_they_lie(kind: HeapKind) -> None:
    import threading

    class Buffer(PooledBuffer[Block]):
        def _export(self) -> object:
            return self.region.block

    device = Heaps()
    region, pool = device.zeros("a buffer", 40, kind)
    mapped = kind is HeapKind.HOST
    buffer = Buffer(threading.RLock(), None, region, device, pool, is_mapped=mapped)
    buffer.write(np.float32([1, 2]))
    found = np.ones(10, np.float32)
    buffer.read(found)
    assert found.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    assert bool(device.copied) is not mapped
    buffer.close()
    device.release()
    assert all(b.is_free for b in device.blocks)


def test_small_copies_share_one_piece_of_the_hosts() -> None:
    device = Heaps()
    region, _ = device.zeros("a buffer", 40, HeapKind.DEVICE)
    pieces = len(device.blocks)
    for n in range(3):
        device.upload([region], [np.full(40, n, np.uint8)])
        assert (device.download(region, 40) == n).all()
    assert len(device.blocks) == pieces
    device.release()
    assert [b.is_free for b in device.blocks if b.kind is HeapKind.HOST] == [True]
    assert (device.download(region, 40) == 2).all()


def test_a_piece_is_not_used_again_after_a_failure() -> None:
    device = Heaps()
    region, _ = device.zeros("a buffer", 40, HeapKind.DEVICE)
    device._copy = None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        device.download(region, 40)
    assert [b.is_free for b in device.blocks if b.kind is HeapKind.HOST] == [True]


@pytest.mark.parametrize(
    ("facts", "shared", "size", "sent", "fetched", "lends"),
    [
        ({}, True, 64, False, False, False),
        ({}, False, 64, True, False, False),  # what is small is stored to the host
        ({"has_reached": True}, False, 40_000, False, True, True),
        ({"has_cached": False}, False, 40_000, True, True, False),
    ],
    ids=["shared", "small", "reached", "slow to read"],
)
def test_only_what_must_be_is_copied(
    facts: Any, shared: bool, size: int, sent: bool, fetched: bool, lends: bool
) -> None:
    device, plan = Heaps(**facts), chain(size, 16)
    memory = PooledMemory(device, plan, shared=shared, guarded=False)
    assert not device.blocks
    memory.allocate(None)
    assert [a is not b for a, b in memory.uploads()] == [sent]
    assert [a is not b for a, b in memory.downloads(memory.output_staging)] == [fetched]
    laid = sum(b.whole.nbytes for b in device.blocks if not b.is_free)
    assert memory.footprint.total == laid
    sets = output_sets(memory, list, list, lambda commands, what: None)
    assert sets.lendable == ({0} if lends else set())
    assert sets.current.commands == [memory.output_staging[0]]
    memory.release()
    assert all(b.is_free for b in device.blocks)


class Noted:
    """Commands that are only listed."""

    def __init__(self) -> None:
        self.order: list[object] = []

    def copy(self, source: object, target: object, nbytes: int) -> None:
        self.order.append("copy")

    def barrier(self, between: Between) -> None:
        self.order.append(between)

    def launch(self, launch: Launch[Block]) -> None:
        self.order.append("launch")

    def stamp(self, timers: object, index: int) -> None:
        self.order.append("stamp")

    def end(self) -> list[object]:
        return self.order


def test_copies_and_dispatches_wait_for_each_other() -> None:
    plan = chain(40_000, 16, steps=2)
    memory = PooledMemory(Heaps(has_cached=False), plan, shared=False, guarded=False)
    memory.allocate(None)
    bound = memory.bind(plan.dispatches)
    launches = [Launch(d, r, None) for d, r in zip(plan.dispatches, bound, strict=True)]
    assert Script(Noted, memory, launches).run(memory.output_staging) == [
        "copy",
        Between.UPLOADS_AND_DISPATCHES,
        "launch",
        Between.DISPATCHES,
        "launch",
        Between.DISPATCHES_AND_DOWNLOADS,
        "copy",
        Between.DOWNLOADS_AND_HOST,
        Between.DISPATCHES_AND_HOST,
    ]
    memory.release()
