"""The checks of buffers notice every promise that is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.contract.buffers import buffer_checks
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.contract.pending import FINISHED
from tflgpu.errors import DeviceError, TflgpuError
from tflgpu.lowering.rule import Unsupported
from tflgpu.plugins.registry import registry

from tests.conformance.test_contract_meta import Spoilt, Wrapped, spoilt


class Kept:
    """A buffer that does what another does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def nbytes(self) -> int:
        return int(self.inner.nbytes)

    def write(self, data: Any) -> None:
        self.inner.write(data)

    def read(self, into: Any) -> None:
        self.inner.read(into)

    def export(self) -> Any:
        return self.inner.export()

    def close(self) -> None:
        self.inner.close()


def bare(buffers: Any) -> dict[int, Any]:
    return {i: getattr(b, "inner", b) for i, b in (buffers or {}).items()}


class Binding(Wrapped):
    """Binds such buffers."""

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        return self.inner.bind(bare(inputs), bare(outputs))


class Good(Spoilt):
    """Its buffers are wrapped, and keep every promise."""

    recording: Any = Binding
    buffer: Any = Kept

    def __init__(self) -> None:
        super().__init__(self.recording)

    def allocate(self, nbytes: int) -> Any:
        return self.buffer(self._device.allocate(nbytes))

    def import_buffer(self, source: object) -> Any:
        found = self._device.import_buffer(source)
        return found if isinstance(found, Unsupported) else self.buffer(found)


class Dirty(Good):
    """New buffers have something in them."""

    def allocate(self, nbytes: int) -> Any:
        found = super().allocate(nbytes)
        found.inner.region.bytes[:] = 1
        return found


class Recycles(Good):
    """New buffers are the memory of closed ones, as it was left."""

    kept = None

    def allocate(self, nbytes: int) -> Any:
        found = super().allocate(nbytes)
        if nbytes == 4 * 259:
            if self.kept is not None:
                found.inner.region.bytes[:] = self.kept
            self.kept = found.inner.region.bytes
        return found


class Words(Kept):
    """Writes whole words."""

    def write(self, data: Any) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.inner.write(np.pad(flat, (0, min(-len(flat) % 4, self.nbytes - len(flat)))))


class Copies(Binding):
    """Copies what is bound to the arrays as well."""

    outs: Any = ()

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        self.outs = [(i, b) for i, b in bare(outputs).items() if b is not None]
        return super().bind(inputs, outputs)

    def run(self) -> None:
        super().run()
        for i, buffer in self.outs:
            buffer.read(self.outputs[i])

    def submit(self) -> Any:
        self.run()
        return FINISHED


class Believes(Binding):
    """Takes two names of one buffer for two buffers."""

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        try:
            return super().bind(inputs, outputs)
        except DeviceError:
            return None


class ForgetsClosed(Binding):
    """Binds nothing any more once one of its buffers is closed."""

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        if outputs and any(buffer._closed for buffer in self.inner._buffers.values()):
            return Unsupported("another buffer is closed")
        return super().bind(inputs, outputs)


class ForEver(Binding):
    """Gives nothing back."""

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        found = [{i: b for i, b in bare(s).items() if b is not None} for s in (inputs, outputs)]
        return self.inner.bind(*found)


class Bears(Binding):
    """Takes what does not fit for nothing."""

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        try:
            return super().bind(inputs, outputs)
        except TflgpuError:
            return None


class Lends(Binding):
    """Lends a bound output."""

    def lend(self, index: int) -> Any:
        return self.outputs[index].copy()

    def settle(self) -> None:
        pass


class Frees(Kept):
    """Is freed under the recordings that are bound to it."""

    def close(self) -> None:
        self.inner.region.bytes[:] = 255
        super().close()


class ImportsCopies(Good):
    """Copies host memory."""

    def import_buffer(self, source: object) -> Any:
        found = super().import_buffer(source)
        if not isinstance(found, Unsupported):
            found = self.buffer(self._device.import_buffer(np.array(source)))
        return found


class ImportsAll(Good):
    """Imports what it cannot write."""

    def import_buffer(self, source: object) -> Any:
        found = super().import_buffer(source)
        return self.allocate(4096) if isinstance(found, Unsupported) else found


class LeavesOpen(Good):
    """Allocates after it was closed."""

    def close(self) -> None:
        super().close()
        self._device._closed = False


def recordings(kind: type = Binding, **changes: Any) -> type[Good]:
    """A device with such recordings, of which some methods are others."""
    return spoilt(Good, recording=spoilt(kind, **changes))


def buffers(kind: type = Kept, **changes: Any) -> type[Good]:
    """A device with such buffers, of which some methods are others."""
    return spoilt(Good, buffer=spoilt(kind, **changes))


#: What is spoilt, which checks have to say so, and what they say.
BUFFERS_SPOILT: dict[str, tuple[type[Good], Sequence[str], str]] = {
    "dirty": (Dirty, ["contents"], "a new buffer: element"),
    "recycles": (Recycles, ["contents"], "a new buffer, after another was closed: element"),
    "endless": (
        spoilt(Good, allocate=lambda self, n: Good.allocate(self, min(max(n, 0), 1 << 24))),
        ["sizes"],
        "raised nothing",
    ),
    "words": (buffers(Words), ["contents"], "a write of five bytes: element [567]"),
    "ignored": (
        recordings(bind=lambda self, inputs=None, outputs=None: None),
        ["bound", "bound_in_part", "between_recordings", "imported_host_memory", "exported"],
        "element",
    ),
    "copies": (recordings(Copies), ["bound"], "the array of an output that is bound: element"),
    "counts": (
        recordings(copies=(4, 0)),
        ["bound"],
        r"a run says that it copies 4 of 1036 bytes to the dev",
    ),
    "counts twice": (
        recordings(copies=(2 * 4 * 259, 0)),
        ["bound"],
        r"a run says that it copies 2072 of 1036",
    ),
    "counts what is bound": (
        recordings(copies=(4 * 259, 4 * 259)),
        ["bound"],
        r"copies 1036 of 1036 bytes to the d",
    ),
    "believes": (recordings(Believes), ["exported"], "raised nothing"),
    "forgets closed": (recordings(ForgetsClosed), ["closed"], "another buffer is closed"),
    "for ever": (recordings(ForEver), ["bound"], "element"),
    "bears all": (recordings(Bears), ["refusals", "another_device"], "raised nothing"),
    "no reason": (
        recordings(bind=lambda self, *bound: Binding.bind(self, *bound) and Unsupported("")),
        ["guard_bands"],
        "no reason is given",
    ),
    "lends": (recordings(Lends), ["lent_outputs"], "bound to a buffer was lent"),
    "open": (buffers(close=lambda self: None), ["closed"], "raised nothing"),
    "open for export": (
        buffers(export=lambda self: self.inner.region.bytes),
        ["closed"],
        "raised nothing",
    ),
    "open for reading": (
        buffers(read=lambda self, into: into.fill(0)),
        ["closed", "a_closed_device"],
        "raised nothing|element",
    ),
    "frees": (buffers(Frees), ["closed"], "element"),
    "exports copies": (
        buffers(export=lambda self: np.array(Kept.export(self))),
        ["exported"],
        "element",
    ),
    "exports nothing": (
        buffers(export=lambda self: Unsupported("")),
        ["exported"],
        "no reason is given",
    ),
    "imports copies": (ImportsCopies, ["imported_host_memory"], "host memory after a run"),
    "imports all": (ImportsAll, ["imported_host_memory"], "importing a text gave"),
    "device open": (LeavesOpen, ["a_closed_device"], "raised nothing"),
}


def target_of_buffers(kind: Callable[[], Any]) -> DeviceUnderTest:
    return DeviceUnderTest(registry(), "cpu_ref", 1, kind(), opener=kind)


@pytest.mark.parametrize("name", BUFFERS_SPOILT)
def test_buffers_a_broken_promise_is_noticed(name: str) -> None:
    kind, wanted, message = BUFFERS_SPOILT[name]
    checks = [
        c for c in buffer_checks() if any(fnmatchcase(c.id, f"0/buffers/{w}") for w in wanted)
    ]
    assert len(checks) == len(wanted)
    target = target_of_buffers(kind)
    try:
        for check in checks:
            with pytest.raises(AssertionError, match=message):
                check.run(target)
    finally:
        target.close()


def test_every_check_is_spoilt_by_something() -> None:
    spoilt = {f"0/buffers/{name}" for _, wanted, _ in BUFFERS_SPOILT.values() for name in wanted}
    assert spoilt == {check.id for check in buffer_checks()}


@pytest.mark.parametrize("check", buffer_checks(), ids=lambda check: check.id)
def test_the_wrapper_itself_keeps_every_promise(check: Any) -> None:
    target = target_of_buffers(Good)
    try:
        check.run(target)
    finally:
        target.close()
