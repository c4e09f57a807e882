"""What backends find in the core, on drivers that are a few lines of Python."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.backend_kit.calls import Calls
from tflgpu.backend_kit.counted import Counted
from tflgpu.backend_kit.driver_cache import DriverCache
from tflgpu.backend_kit.kept_kernels import KeptKernels
from tflgpu.backend_kit.listing import Listing, vendor_named
from tflgpu.backend_kit.pools import MemoryPool
from tflgpu.backend_kit.run_commands import access_of
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.conformance.plans import add, affine, dispatch
from tflgpu.contract.device import DeviceInfo
from tflgpu.contract.memory_use import Use
from tflgpu.errors import DeviceError
from tflgpu.language.kernel import Kernel


class TestListing:
    def listing(self) -> Listing[str]:
        names = {"slow": 2, "first": 0, "fast": 1, "second": 0}
        ranked = ((rank, DeviceInfo("api", 0, name), name + "!") for name, rank in names.items())
        return Listing.of("API", ranked, "nothing else")

    def test_devices_are_ordered_and_numbered(self) -> None:
        probe = self.listing().probe()
        assert probe.available
        assert not probe.reason
        assert [(d.index, d.name) for d in probe.devices] == [
            (0, "first"), (1, "second"), (2, "fast"), (3, "slow"),
        ]  # fmt: skip
        assert self.listing().at(2).handle == "fast!"

    @pytest.mark.parametrize("index", [-1, 4])
    def test_another_index_is_told_what_there_is(self, index: int) -> None:
        with pytest.raises(DeviceError, match=f"no API device {index}; there are: 0 = first, 1 ="):
            self.listing().at(index)

    def test_where_there_are_none(self) -> None:
        empty: Listing[str] = Listing.of("API", (), "no driver")
        assert (empty.probe().available, empty.probe().reason) == (False, "no driver")
        with pytest.raises(DeviceError, match="there are: no driver"):
            empty.at(0)

    def test_vendors_by_name(self) -> None:
        assert vendor_named("Advanced Micro Devices, Inc.") == "amd"
        assert vendor_named("Intel(R) Corporation") == "intel"
        assert vendor_named("GenuineIntel", "Mesa") == "mesa"  # a part of a word says nothing
        assert vendor_named("Charm") == vendor_named() == ""


class TestCalls:
    class Asked(Calls):
        def _failure(self, label: str, status: int) -> DeviceError:
            return DeviceError(f"{label}: {status}")

    def test_the_call_that_fails_is_named(self) -> None:
        made: list[int] = []

        def call(number: int) -> int:
            made.append(number)
            return min(0, number)

        calls = self.Asked()
        for number in (1, 2, -3, 4):
            calls.append((call, (number,)), f"call {number}")
        with pytest.raises(DeviceError, match="call -3: -3"):
            calls.submit()
        assert made == [1, 2, -3]

    @pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signals here")
    def test_a_signal_is_heard_among_many_calls(self) -> None:
        """Not only after the last one, which here sends another signal."""
        send = ctypes.CDLL(None)["raise"]  # of 0: nothing
        calls = self.Asked()
        heard: list[int] = []
        for number in (signal.SIGUSR1, *[0] * 600, signal.SIGUSR2):
            calls.append((send, (int(number),)), "send")

        def hear(number: int, frame: object) -> None:
            heard.append(number)
            if number == signal.SIGUSR1:
                raise KeyboardInterrupt

        before = [
            (number, signal.signal(number, hear)) for number in (signal.SIGUSR1, signal.SIGUSR2)
        ]
        try:
            with pytest.raises(KeyboardInterrupt):
                calls.submit()
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        assert heard == [signal.SIGUSR1]


def test_counted_goes_with_its_last_user() -> None:
    class Thing(Counted):
        destroyed = 0

        def _destroy(self) -> None:
            self.destroyed += 1

    thing = Thing()
    thing.retain()
    thing.close()
    thing.close()
    assert not thing.destroyed
    thing.release()
    assert thing.destroyed == 1
    child = Thing()
    child.after_fork()
    child.close()
    assert not child.destroyed


def test_constants_are_no_hazard() -> None:
    from tflgpu.compiler.plan import ConstRef, InputRef, OutputRef

    refs = [InputRef(0), ConstRef(0), OutputRef(0)]
    found = access_of(dispatch(add(8), 8, refs), [(1, 0, 32), (2, 0, 32), (3, 0, 32)])
    assert (found.reads, found.writes) == (((1, 0, 32),), ((3, 0, 32),))


class Refusal(Exception):
    """What the driver below raises."""


class Driver(KeptKernels[int, str]):
    """Programs are their texts, and binaries too, unless ``spoil`` makes something else of them."""

    refusals = (Refusal,)

    def __init__(
        self, folder: Path, spoil: Callable[[bytes], bytes] = bytes, maker: str = "driver 1"
    ) -> None:
        super().__init__(DiskCache(folder), maker, keep=True)
        self.spoil = spoil

    def _write(self, kernel: Kernel, way: int) -> str:
        return f"{kernel.name} {way}"

    def _from_source(self, kernel: Kernel, source: str) -> str:
        self.count()
        return source

    def _from_binary(self, binary: bytes) -> str:
        if b"?" in binary:
            raise Refusal("no")
        return binary.decode()

    def _binary_of(self, made: str) -> bytes:
        return self.spoil(made.encode())

    def _describe(self, made: str) -> bytes:
        return made.split(maxsplit=1)[0].encode()

    def use(self) -> int:
        """How many of three kernels are compiled."""
        kernels = [affine(4, i, name=f"affine{i}") for i in range(3)]
        found = self.get((kernel, 5) for kernel in kernels)
        assert list(found.values()) == [f"affine{i} 5" for i in range(3)]
        return self.compiled


class TestKeptKernels:
    def test_the_next_process_compiles_nothing(self, tmp_path: Path) -> None:
        assert [Driver(tmp_path).use() for _ in range(2)] == [3, 0]
        assert Driver(tmp_path, maker="driver 2").use() == 3

    def test_what_another_made_just_before_the_lock_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late, original = Driver(tmp_path), Driver._building

        def building(driver: Driver, source: str) -> Any:
            monkeypatch.setattr(Driver, "_building", original)
            assert Driver(tmp_path).use() == 3
            return original(driver, source)

        monkeypatch.setattr(Driver, "_building", building)
        late.get([(affine(4, 0, name="affine0"), 5)])
        assert late.compiled == 0

    @pytest.mark.parametrize("bad", [b"", b"?", b"other 5"], ids=["none", "refused", "another"])
    def test_what_the_driver_does_not_read_again_is_not_kept(
        self, tmp_path: Path, bad: bytes
    ) -> None:
        assert [Driver(tmp_path, lambda binary: bad).use() for _ in range(2)] == [3, 3]
        assert not list(tmp_path.glob("*.bin"))

    @pytest.mark.parametrize("bad", [b"?", b"other 5"], ids=["refused", "another"])
    def test_what_has_changed_on_disk_is_compiled_anew(self, tmp_path: Path, bad: bytes) -> None:
        Driver(tmp_path).use()
        cache = DiskCache(tmp_path)
        files = sorted(tmp_path.glob("*.bin"))
        for file in files:
            content = cache.load(file.stem)
            assert content is not None
            end = 4 + int.from_bytes(content[:4], "little")
            cache.store(file.stem, content[:end] + bad)
        assert len(files) == 3
        assert [Driver(tmp_path).use() for _ in range(2)] == [3, 0]


class Whole(DriverCache[set[str]]):
    """A driver's cache is a set of names."""

    freed = 0

    def _new(self, content: bytes) -> set[str]:
        if b"?" in content:
            raise DeviceError("no")
        return set(content.decode().split())

    def _free(self, handle: set[str]) -> None:
        self.freed += 1

    def _size(self) -> int:
        return len(" ".join(self.handle))

    def _content(self) -> bytes | None:
        return " ".join(sorted(self.handle)).encode()

    def _add(self, other: set[str]) -> None:
        self.handle |= other

    def _objection(self, content: bytes) -> str:
        return "it is another's" if content.startswith(b"#") else ""


class TestDriverCache:
    def made(self, tmp_path: Path, *names: str) -> Whole:
        cache = Whole(DiskCache(tmp_path), "key")
        cache.handle |= set(names)
        cache.save()
        return cache

    def test_processes_add_to_it(self, tmp_path: Path) -> None:
        first = Whole(DiskCache(tmp_path), "key")
        second = self.made(tmp_path, "b")
        first.handle |= {"a"}
        with first.using() as may_read:
            assert may_read
        first.save()
        assert first.handle == {"a", "b"}
        assert second.handle == {"b"}
        assert Whole(DiskCache(tmp_path), "key").handle == {"a", "b"}
        assert first.freed == 2  # what was on disk, and the proof

    def test_what_did_not_grow_is_not_written(self, tmp_path: Path) -> None:
        self.made(tmp_path, "a")
        (file,) = tmp_path.glob("*.bin")
        before = file.stat().st_ino
        assert self.made(tmp_path).freed == 0
        assert file.stat().st_ino == before  # what is written takes the file's place
        self.made(tmp_path, "b")
        assert file.stat().st_ino != before

    @pytest.mark.parametrize("bad", [b"# a", b"?"], ids=["another's", "refused"])
    def test_what_the_driver_does_not_take(self, tmp_path: Path, bad: bytes) -> None:
        DiskCache(tmp_path).store("key", bad)
        cache = Whole(DiskCache(tmp_path), "key")
        assert cache.handle == set()

    def test_what_it_cannot_read_again_is_not_kept(self, tmp_path: Path) -> None:
        self.made(tmp_path, "?")
        assert not list(tmp_path.glob("*.bin"))


def test_pools_lay_regions_out_before_there_is_memory() -> None:
    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.bytes = np.zeros(nbytes, np.uint8)
            self.is_free = False

        def release(self) -> None:
            self.is_free = True

    pool = MemoryPool(Memory, 64, 256, "memory", Use.ARENA)
    first, second, third = (pool.region(f"r{i}", 70, band=16) for i in range(3))
    assert (first.bound, second.bound) == ((0, 104), (128, 104))
    assert (second.offset, third.offset) == (144, 16)  # a block has at most 256 bytes
    assert pool.nbytes == 384
    with pytest.raises(DeviceError, match="large takes 300 bytes"):
        pool.region("large", 300)
    pool.allocate()
    second.bytes[:] = 1
    assert second.block is first.block is not third.block
    assert first.block.bytes.sum() == 70
    blocks = {id(r.block): r.block for r in (first, third)}
    pool.release()
    assert all(block.is_free for block in blocks.values())
