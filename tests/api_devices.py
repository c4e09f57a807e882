"""Devices of single APIs, with caches of the test's own, and tests that several of them share: a
module imports them by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.compiler.plan import Plan
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.errors import KernelError
from tflgpu.lowering.reason import Unsupported

from tests.language.test_subgroup import exchange


@contextmanager
def devices(api: str, kind: str, cache: Path | None = None) -> Iterator[Callable[..., Any]]:
    """``open_device(**arguments of the class)``; what it opened is closed in the end."""
    made = getattr(import_module(f"tflgpu_{api}.device"), kind)
    opened: list[Any] = []

    def open_device(**arguments: Any) -> Any:
        if cache is not None:
            arguments.setdefault("cache", DiskCache(cache))
        opened.append(made(0, **arguments))
        return opened[-1]

    yield open_device
    for device in opened:
        device.close()


def moving(open_device: Callable[..., Any], way: str) -> Any:
    """A device that moves data in place, or copies it."""
    made = open_device(share_memory=way == "in place")
    if way == "in place" and not made.in_place:
        pytest.skip("this device has memory of its own")
    return made


def runs_two_bodies(device: Any, plan: Plan) -> None:
    """Runs a plan whose four outputs are its input times 2, 3, 2 and 3, plus 1."""
    recording = device.load(plan)
    recording.inputs[0][...] = np.arange(8)
    recording.run()
    for output, factor in zip(recording.outputs, (2, 3, 2, 3), strict=True):
        assert (output == np.arange(8) * factor + 1).all()


def test_it_says_what_a_run_copies(device: Any) -> None:
    recording = device.load(chain(257, device.alignment))
    own = 0 if device.in_place else 4 * 257
    assert recording.copies == (own, own)
    buffer = device.allocate(4 * 257)
    recording.bind({0: buffer})
    assert recording.copies == (0, own)
    recording.bind({0: None}, {0: buffer})
    assert recording.copies == (own, 0)
    recording.bind(outputs={0: None})
    assert recording.copies == (own, own)
    recording.close()
    buffer.close()


@pytest.mark.parametrize("guard_bands", [False, True])
def test_it_does_less_where_less_counts(device: Any, guard_bands: bool) -> None:
    """32 numbers a workgroup; a buffer shows which workgroups there were."""
    count = 20011  # more than outputs that kernels store straight to the host
    plan = chain(count, device.alignment)
    counts = tuple(-(-(count - absent) // 32) for absent in range(count))
    steps = tuple(attrs.evolve(step, fewer=(counts, (), ())) for step in plan.dispatches)
    recording = device.load(attrs.evolve(plan, dispatches=steps), guard_bands=guard_bands)
    copies = not (guard_bands or getattr(device, "in_place", False))
    for x, size in ((1, count), (2, 33), (3, 15001), (4, count)):
        recording.inputs[0][...] = x
        recording.fit(count - size, [4 * size])
        recording.outputs[0][...] = -1
        recording.run()
        assert (recording.outputs[0][:size] == chain_expected(np.float32(x))).all()
        if copies:
            assert recording.copies == (4 * count, 4 * size)
        if copies and device.info.backend != "wgpu":  # whose memory is mapped anew by each run
            assert (recording.outputs[0][size:] == -1).all()
        times = recording.profile()
        assert isinstance(times, Unsupported) or len(times) == len(steps)
    if not guard_bands:
        buffer = device.allocate(4 * count)
        assert recording.bind(outputs={0: buffer}) is None
        recording.fit(count - 33, [4 * 33])
        recording.run()
        found = np.zeros(count, np.float32)
        buffer.read(found)
        assert (found[:64] == chain_expected(np.float32(4))).all()
        assert not found[64:].any()
    recording.close()


def test_what_the_probe_does_not_find_the_device_has_not(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tflgpu.backend_kit.subgroup_probe.probe_shuffle", lambda device, widest: 0)
    opened = open_device()
    assert opened.caps.subgroup_shuffle == 0
    with pytest.raises(KernelError, match="a shuffle, which this device does not have"):
        opened.source(exchange(1))
