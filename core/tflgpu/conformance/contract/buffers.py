"""Buffers of a device, and recordings that are bound to them. What a device does not have it says,
with a reason, and nothing more is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from tflgpu.conformance.contract.tools import (
    Question,
    fill,
    gives,
    loaded,
    own,
    refused,
    same,
    says,
    shared,
    small,
    whole,
    works,
)
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import Device, Recording
from tflgpu.contract.offers import Lender, offers
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

_COUNT = 259
_BYTES = 4 * _COUNT
#: What the small plan adds.
_BIAS = np.arange(_COUNT, dtype=np.float32)
#: Outputs so large that a device may lend them.
_MANY = 1 << 18


def buffer_checks() -> list[Check]:
    """What is in a buffer, what recordings do with it, what is refused, and when it is freed."""
    return [
        shared("buffers/contents", _asking(_contents)),
        shared("buffers/sizes", _asking(_sizes)),
        shared("buffers/bound", _asking(_bound)),
        shared("buffers/bound_in_part", _asking(_bound_in_part)),
        shared("buffers/between_recordings", _asking(_between_recordings)),
        shared("buffers/lent_outputs", _asking(_lent_outputs)),
        shared("buffers/refusals", _asking(_refusals)),
        Check("0/buffers/another_device", _another_device),
        shared("buffers/guard_bands", _asking(_guard_bands)),
        shared("buffers/closed", _asking(_closed)),
        own("buffers/a_closed_device", _asking(_a_closed_device)),
        shared("buffers/exported", _asking(_exported)),
        shared("buffers/imported_host_memory", _imported_host_memory),
    ]


class _NoneHere(Exception):
    """The device has no buffers; the text says why."""


def _asking(question: Question) -> Question:
    """A question that needs buffers."""

    def ask(device: Device) -> Outcome:
        try:
            return question(device)
        except _NoneHere as none:
            return NotApplicable(str(none))

    return ask


@contextmanager
def _buffers(device: Device, *sizes: int) -> Iterator[list[Buffer]]:
    made: list[Buffer] = []
    try:
        for nbytes in sizes:
            found = device.allocate(nbytes)
            if isinstance(found, Unsupported):
                assert found.reason, "there are no buffers, and no reason is given"
                raise _NoneHere(found.reason)
            made.append(found)
        yield made
    finally:
        for each in made:
            each.close()


def _held(buffer: Buffer, count: int = _COUNT) -> Array:
    found = np.full(count, -1, np.float32)
    buffer.read(found)
    return found


def _copies(recording: Recording, sent: int | None, fetched: int | None) -> tuple[int, int] | None:
    """What a recording says that a run copies; where None is wanted it may be 0 or `_BYTES`."""
    said: tuple[int, int] | None = getattr(recording, "copies", None)
    if said is None:
        return None
    for count, want, where in zip(said, (sent, fetched), ("device", "host"), strict=True):
        fits = count in (0, _BYTES) if want is None else count == want
        assert fits, f"a run says that it copies {count} of {_BYTES} bytes to the {where}"
    return said


def _agreed(answer: object, what: str) -> None:
    assert answer is None, f"{what}: bind answered {answer!r}"


def _contents(device: Device) -> None:
    x = whole(_COUNT)
    for what in ("a new buffer", "a new buffer, after another was closed"):
        with _buffers(device, _BYTES) as (buffer,):
            same(_held(buffer), np.zeros(_COUNT, np.float32), what)
            buffer.write(x)
    with _buffers(device, _BYTES) as (buffer,):
        assert isinstance(buffer, Buffer), f"allocate gave a {type(buffer).__name__}"
        assert buffer.nbytes >= _BYTES, f"a buffer of {_BYTES} bytes has {buffer.nbytes}"
        buffer.write(x.reshape(7, -1))
        same(_held(buffer), x, "what was written to a buffer")
        few = np.arange(1, 6, dtype=np.uint8)  # ends in the middle of a word
        buffer.write(few)
        want = x.view(np.uint8).copy()
        want[:5] = few
        found = np.zeros(_BYTES, np.uint8)
        buffer.read(found)
        same(found, want, "a buffer after a write of five bytes")
        odd = np.zeros(7, np.uint8)
        buffer.read(odd)
        same(odd, want[:7], "seven bytes of a buffer")
        turned = np.zeros((_COUNT, 2), np.float32)
        buffer.read(turned[:, 0])
        same(turned[:, 0].copy(), want.view(np.float32), "what was read into an array with gaps")


def _sizes(device: Device) -> None:
    """No bytes, one, and too many."""
    most = device.caps.max_buffer_bytes
    with _buffers(device, 0, 1, 17) as made:
        for nbytes, buffer in zip((0, 1, 17), made, strict=True):
            data = np.arange(nbytes, dtype=np.uint8)
            buffer.write(data)
            found = np.zeros_like(data)
            buffer.read(found)
            same(found, data, f"a buffer of {nbytes} bytes")
    for nbytes in (most + 1, -1):
        refused(partial(device.allocate, nbytes), f"allocating {nbytes} bytes", DeviceError)


def _bound(device: Device) -> None:
    """Runs read and write the buffers, and leave the host's arrays alone until those return."""
    with (
        _buffers(device, _BYTES, _BYTES + 20, _BYTES) as (x_buffer, y_buffer, other),
        loaded(device, chain(_COUNT, device.alignment)) as recording,
    ):
        mine = whole(_COUNT, 1)
        fill(recording, mine)
        recording.run()
        kept, unbound = np.array(recording.outputs[0]), _copies(recording, None, None)
        _agreed(recording.bind({0: x_buffer}), "an input")
        _copies(recording, 0, unbound and unbound[1])
        _agreed(recording.bind(outputs={0: y_buffer}), "an output besides")
        _copies(recording, 0, 0)
        for seed in (2, 3):
            x = whole(_COUNT, seed)
            x_buffer.write(x)
            if seed == 2:
                recording.run()
            else:
                assert recording.submit().wait(), "a submission with buffers"
            same(_held(y_buffer), chain_expected(x), f"the buffer of an output, input {seed}")
            same(_held(x_buffer), x, "the buffer of an input after a run")
            same(np.array(recording.outputs[0]), kept, "the array of an output that is bound")
            same(np.array(recording.inputs[0]), mine, "the array of an input that is bound")
        recording.profile()
        same(_held(y_buffer), chain_expected(x), "the buffer of an output after a profile")
        _agreed(recording.bind(outputs={0: other}), "another output buffer")
        x_buffer.write(mine)
        recording.run()
        same(_held(other), chain_expected(mine), "another buffer of the output")
        same(_held(y_buffer), chain_expected(x), "the buffer that was the output's before")
        _agreed(recording.bind({0: None}, {0: None}), "giving back")
        _copies(recording, *(unbound or (None, None)))
        gives(
            recording,
            chain_expected(whole(_COUNT, 5)),
            "a run after the buffers were given back",
            whole(_COUNT, 5),
        )
        same(_held(other), chain_expected(mine), "a buffer after it was given back")


def _bound_in_part(device: Device) -> None:
    """An input alone, and an output alone."""
    with (
        _buffers(device, _BYTES) as (buffer,),
        loaded(device, small(device, _COUNT)) as recording,
    ):
        x = whole(_COUNT)
        buffer.write(x)
        _agreed(recording.bind({0: buffer}), "an input")
        gives(recording, x + _BIAS, "an output whose input is in a buffer")
        _agreed(recording.bind({0: None}, {0: buffer}), "an output")
        fill(recording, x + 1)
        recording.run()
        same(_held(buffer), x + 1 + _BIAS, "a buffer whose input is an array")


def _between_recordings(device: Device) -> None:
    """What one recording leaves another reads, on the device."""
    with (
        _buffers(device, _BYTES) as (buffer,),
        loaded(device, small(device, _COUNT)) as first,
        loaded(device, chain(_COUNT, device.alignment)) as second,
    ):
        _agreed(first.bind(outputs={0: buffer}), "the output of the first")
        _agreed(second.bind({0: buffer}), "the input of the second")
        for seed in range(3):
            x = whole(_COUNT, seed)
            fill(first, x)
            first.run()
            want = chain_expected(x + _BIAS)
            gives(second, want, "what went from one recording to another")


def _lent_outputs(device: Device) -> Outcome:
    """What was lent before stays the caller's, and what is bound is not lent."""
    with (
        _buffers(device, 4 * _MANY) as (buffer,),
        loaded(device, small(device, _MANY)) as recording,
    ):
        if not offers(recording, Lender):
            return NotApplicable("its recordings do not lend their outputs")
        bias = np.arange(_MANY, dtype=np.float32)
        recording.inputs[0][...] = 1
        recording.run()
        lent = recording.lend(0)
        _agreed(recording.bind(outputs={0: buffer}), "an output after it was lent")
        recording.inputs[0][...] = 2
        recording.run()
        same(_held(buffer, _MANY), bias + 2, "the buffer of an output that was lent before")
        assert recording.lend(0) is None, "an output that is bound to a buffer was lent"
        _agreed(recording.bind(outputs={0: None}), "giving it back")
        recording.inputs[0][...] = 3
        recording.run()
        recording.settle()
        same(
            np.array(recording.outputs[0]),
            bias + 3,
            "an output after its buffer was given back",
        )
        if lent is not None:
            same(lent, bias + 1, "what was lent before")
    return None


def _refusals(device: Device) -> None:
    """What does not fit is an error that says what, and changes nothing."""
    with (
        _buffers(device, _BYTES, _BYTES - 4) as (buffer, short),
        loaded(device, small(device, _COUNT)) as recording,
    ):
        large = np.zeros(buffer.nbytes + 1, np.uint8)
        for what, action in (("writing", buffer.write), ("reading", buffer.read)):
            error = refused(partial(action, large), f"{what} too much", DeviceError)
            says(error, f"{what} too much", str(large.nbytes), str(buffer.nbytes))
        for what, inputs, outputs, words in (
            ("too small a buffer", {0: short}, {}, (str(_BYTES),)),
            ("an input that there is not", {1: buffer}, {}, ("input 1",)),
            ("an output that there is not", {}, {-1: buffer}, ("output -1",)),
            ("what is no buffer", {0: np.zeros(_COUNT, np.float32)}, {}, ("input 0",)),
            (
                "one buffer for an input and an output",
                {0: buffer},
                {0: buffer},
                ("one buffer",),
            ),
        ):
            bind = lambda i=inputs, o=outputs: recording.bind(i, o)  # noqa: E731
            says(refused(bind, f"binding {what}", DeviceError), f"binding {what}", *words)
        x = whole(_COUNT)
        gives(recording, x + _BIAS, "a run after refused buffers", x)


def _another_device(target: DeviceUnderTest) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    device, other = target.device, target.reopen()

    def ask(foreign: Device) -> None:
        with (
            _buffers(foreign, _BYTES) as (buffer,),
            loaded(device, small(device, _COUNT)) as recording,
        ):
            what = "binding a buffer of another device"
            says(refused(lambda: recording.bind({0: buffer}), what, DeviceError), what, "device")
        works(device, "a plan after a buffer of another device was refused")

    try:
        assert isinstance(other.device, Device)
        return _asking(ask)(other.device)
    finally:
        other.close()


def _guard_bands(device: Device) -> None:
    """Bound between bands, or the reason why not; either way what comes out is right."""
    with (
        _buffers(device, _BYTES) as (buffer,),
        loaded(device, small(device, _COUNT), guard_bands=True) as recording,
    ):
        x = whole(_COUNT)
        buffer.write(x)
        fill(recording, x)
        answer = recording.bind({0: buffer})
        if answer is not None:
            assert isinstance(answer, Unsupported), f"bind answered {answer!r}"
            assert answer.reason, "bind answered no, and no reason is given"
        gives(recording, x + _BIAS, "a run between bands after bind")


def _closed(device: Device) -> None:
    """A buffer that is closed is not used any more, but by recordings that are bound to it."""
    with (
        _buffers(device, _BYTES, _BYTES) as (x_buffer, y_buffer),
        loaded(device, small(device, _COUNT)) as recording,
        loaded(device, small(device, _COUNT)) as other,
    ):
        x = whole(_COUNT)
        x_buffer.write(x)
        _agreed(recording.bind({0: x_buffer}), "an input")
        _agreed(other.bind({0: y_buffer}), "the input of another")
        for buffer in (x_buffer, y_buffer):
            buffer.close()
            buffer.close()
        refused(lambda: x_buffer.write(x), "writing to a closed buffer", StateError)
        refused(lambda: _held(x_buffer), "reading a closed buffer", StateError)
        refused(x_buffer.export, "exporting a closed buffer", StateError)
        refused(lambda: other.bind({0: x_buffer}), "binding a closed buffer", StateError)
        want = x + _BIAS
        gives(recording, want, "a run with a buffer that was closed")
        with _buffers(device, _BYTES) as (result,):
            _agreed(recording.bind(outputs={0: result}), "an output beside a closed input")
            recording.run()
            same(_held(result), want, "an output that was bound beside a closed input")
        _agreed(recording.bind({0: None}, {0: None}), "giving them back")
        gives(recording, want + 1, "a run after it was given back", x + 1)


def _a_closed_device(device: Device) -> None:
    with _buffers(device, _BYTES, _BYTES) as (bound, free):
        recording = device.load(small(device, _COUNT))
        _agreed(recording.bind({0: bound}), "an input")
        recording.run()
        device.close()
        for buffer in (bound, free):
            refused(partial(_held, buffer), "a buffer of a closed device", StateError)
            buffer.close()
        refused(lambda: device.allocate(4), "allocating on a closed device", StateError)
        refused(
            lambda: device.import_buffer(bytearray(4)),
            "importing to a closed device",
            StateError,
        )


def _exported(device: Device) -> Outcome:
    """What is exported and imported again is the same memory."""
    with (
        _buffers(device, 4096) as (buffer,),
        loaded(device, small(device, 1024)) as recording,
    ):
        exported = buffer.export()
        if isinstance(exported, Unsupported):
            assert exported.reason, "export answered no, and no reason is given"
            return NotApplicable(exported.reason)
        again = device.import_buffer(exported)
        if isinstance(again, Unsupported):
            assert again.reason, "what was exported is not imported, and no reason is given"
            return NotApplicable(again.reason)
        x = whole(1024)
        again.write(x)
        same(_held(buffer, 1024), x, "a buffer that was written as an imported one")
        _agreed(recording.bind({0: again}), "an imported buffer")
        want = x + np.arange(1024, dtype=np.float32)
        gives(recording, want, "a run with an imported buffer")
        what = "binding an input and an output to one buffer by two names"
        says(refused(lambda: recording.bind(outputs={0: buffer}), what, DeviceError), what, "one")
        again.close()
        same(_held(buffer, 1024), x, "a buffer after its import was closed")
    return None


def _imported_host_memory(device: Device) -> Outcome:
    """Used in place: what a run leaves is there without a copy. Or there is a reason."""
    block = np.zeros(3 * 4096, np.uint8)
    start = -block.ctypes.data % 4096
    host = block[start : start + 4096].view(np.float32)
    columns = host.reshape(32, 32)[:, ::2]
    others: list[tuple[str, object]] = [
        ("a text", "host"),
        ("read-only memory", bytes(4096)),
        ("every other column", columns),
    ]
    for what, source in others:
        answer = device.import_buffer(source)
        assert isinstance(answer, Unsupported), f"importing {what} gave {answer!r}"
        assert answer.reason, f"importing {what}: no reason is given"
    found = device.import_buffer(host)
    if isinstance(found, Unsupported):
        assert found.reason, "host memory is not imported, and no reason is given"
        return NotApplicable(found.reason)
    with loaded(device, small(device, 1024)) as recording:
        _agreed(recording.bind(outputs={0: found}), "host memory")
        for seed in range(2):
            x = whole(1024, seed)
            fill(recording, x)
            recording.run()
            want = x + np.arange(1024, dtype=np.float32)
            same(np.array(host), want, "imported host memory after a run that writes it")
        _agreed(recording.bind({0: found}, {0: None}), "host memory as an input")
        host[...] = x
        gives(recording, want, "a run that reads imported host memory")
    found.close()
    host[...] = 1
    return None
