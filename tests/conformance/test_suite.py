"""The conformance suite on every backend that is here, in this process."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance import op_checks
from tflgpu.conformance.suite import Suite, all_checks
from tflgpu.conformance.target import Check, DeviceUnderTest
from tflgpu.plugins.registry import registry

from tests.running import allocate_and_run
from tests.small_models import small_model

#: cpu_ref is there always; its two devices are nothing alike.
DEVICES = [("cpu_ref", 0), ("cpu_ref", 1)] + [
    (name, 0) for name in registry().backends if name != "cpu_ref"
]
#: They run operators as they are: no kernels, in no buffers of ours.
RUN_NODES = (("cpu_ref", 0), ("litert", 0))


@functools.cache
def _checks() -> tuple[Check, ...]:
    return all_checks(registry().ops().values())


@functools.cache
def _suite(backend: str) -> Suite:
    return Suite.of_checks(_checks(), registry(), backend)


def _group(device: tuple[str, int], check: Check) -> str:
    """What one test asks: a level-2 group shares one load; checks of nodes of one kind take
    milliseconds, as do guards where there are none; everything else is a group of its own."""
    level, *rest = check.id.split("/")
    if level == "1" or (rest[0] == "guards" and device in RUN_NODES):
        return f"{level}/{rest[0]}"
    if level != "2" or len(rest) < 3:  # no samples run: what an op says of itself is looked at
        return check.id
    op, *_, precision, tensors = rest  # between them the sample, and what was planted in it
    return f"2/{op}/{precision}/{tensors}"


EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
#: Of level 2, what each device is asked here; `pytest --pyargs tflgpu.conformance` asks it all.
#: Drivers that compute on a CPU take minutes for each combination of a precision and a place of
#: the tensors. So the APIs share: an op's first sample is asked of one of them, about half of the
#: others of one each, and about half of the ops inside a partition of one. The interpreter is asked
#: all four of an op's first sample, and the first and another of each of the others, by turns (all,
#: with TFLGPU_TEST_EVERYTHING=1): a kernel has its ways for a precision and a place whatever the
#: sizes are. Packed layouts show there, and conversions where tensors are stored in 16 bits. LiteRT
#: stores no 16-bit floats and lets nothing lie elsewhere: it would skip the rest.
EVERYWHERE = ("f32/edge", "f32/internal", "f16/internal", "f32_f16/internal")
ASKED = {"cpu_ref:0": ("f32/edge",), "cpu_ref:1": EVERYWHERE, "litert:0": ("f32/edge",)}
BY_TURNS = {"opencl": "f32_f16/internal", "vulkan": "f16/internal", "wgpu": "f16/internal"}
#: PoCL takes longest to compile, so that its turn comes less often. At None's nobody is asked.
TURNS = (
    "vulkan", None, "wgpu", None, "opencl", None, "vulkan", None, "wgpu", None, None,
    "vulkan", None, "wgpu", None, None, "vulkan", None, "wgpu", None, None,
)  # fmt: skip
FIRST = ("vulkan", "wgpu", "opencl", "vulkan", "wgpu")


def _turn(name: str) -> str | None:
    """The API that is asked about something of this name."""
    return TURNS[sum(name.encode()) % len(TURNS)]


def _worth_it(device: tuple[str, int], check: Check, samples: Sequence[str]) -> bool:
    """Whether to ask a device; ``samples`` are those of the check's op."""
    backend, index = device
    level, op, *rest = check.id.split("/")
    if level in ("3", "4") or (level, op) == ("5", "guards"):  # random samples and graphs; guards
        if backend in BY_TURNS:
            return _turn(check.id) == backend
        # References against themselves, which the interpreter's answers are held to as well.
        return level != "3" or device != ("cpu_ref", 0)
    if level != "2":
        return True
    if len(rest) < 3:  # of the op alone: no device has a part in it
        return device == ("cpu_ref", 0)
    what = "/".join(rest[-2:])
    place = samples.index(rest[0])
    if backend not in BY_TURNS:
        by_turns = (
            EVERYWHERE if place == 0 or EVERYTHING else ("f32/edge", EVERYWHERE[1 + place % 3])
        )
        return what in by_turns and what in ASKED.get(f"{backend}:{index}", EVERYWHERE)
    if what == "f32/edge":
        number = sum(op.encode())
        if place == 0:
            return FIRST[number % len(FIRST)] == backend
        return TURNS[(place + number) % len(TURNS)] == backend
    return what == BY_TURNS[backend] and _turn(op) == backend


def _alone(checks: list[Check]) -> list[Check]:
    """The checks without the load of what is not asked: each asks for all of its group's."""
    found = [c for c in checks if getattr(c.run, "func", None) is op_checks._check]
    questions = tuple(check.run.args[0][check.run.args[1]] for check in found)
    alone = {
        check.id: attrs.evolve(check, run=functools.partial(op_checks._check, questions, i))
        for i, check in enumerate(found)
    }
    return [alone.get(check.id, check) for check in checks]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checks" not in metafunc.fixturenames:
        return
    pairs: dict[str, tuple[tuple[str, int], list[Check]]] = {}
    for device in DEVICES:
        checks = _suite(device[0]).checks
        samples: dict[str, list[str]] = {}
        for check in checks:
            level, op, *rest = check.id.split("/")
            if level == "2" and len(rest) >= 3 and rest[0] not in samples.setdefault(op, []):
                samples[op].append(rest[0])
        for check in checks:
            if _worth_it(device, check, samples.get(check.id.split("/")[1], ())):
                name = f"{device[0]}:{device[1]}/{_group(device, check)}"
                pairs.setdefault(name, (device, []))[1].append(check)
    asked = [(device, _alone(checks)) for device, checks in pairs.values()]
    metafunc.parametrize(
        ("target", "checks"), asked, ids=pairs, indirect=["target"], scope="module"
    )


@pytest.fixture(scope="module")
def target(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[DeviceUnderTest]:
    backend, index = request.param
    require_backend(backend)
    opened = DeviceUnderTest.open(registry(), backend, index)
    yield opened
    opened.close()


@functools.cache
def _litert_has_no_large_sigmoid() -> bool:
    """On some processors LiteRT's sigmoid of finite numbers beyond 1e27 is NaN, by whomever it is
    asked."""
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    alone = litert.Interpreter(
        model_content=small_model({"x": (32,), "y": (32,)}, "y = LOGISTIC(x)")
    )
    allocate_and_run(alone, {0: np.full(32, -1e30, np.float32)})
    return bool(np.isnan(alone.get_tensor(1)).any())


def test_conformance(checks: list[Check], target: DeviceUnderTest) -> None:
    planted_in_logistic = all(re.match("2/LOGISTIC/.*/edge$", c.id) for c in checks)
    if target.backend == "litert" and planted_in_logistic and _litert_has_no_large_sigmoid():
        checks = [c for c in checks if c.id.split("/")[3] != "everywhere"]
    verdicts = {c.id: _suite(target.backend).judge(c, target) for c in checks}
    failed = {i: v.detail for i, v in verdicts.items() if v.status == "failed"}
    assert not failed, "\n".join(f"{i}: {detail}" for i, detail in failed.items())
    if all(v.status in ("refused", "inapplicable") for v in verdicts.values()):
        pytest.skip(next(iter(verdicts.values())).detail)
    if all(v.status == "expected" for v in verdicts.values()):
        pytest.xfail(next(iter(verdicts.values())).detail)
