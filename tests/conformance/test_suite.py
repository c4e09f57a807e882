"""The conformance suite on every backend that is here, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.conformance.check import Check
from tflgpu.conformance.suite import Suite
from tflgpu.conformance.target import Target
from tflgpu.plugins import registry

#: cpu_ref is there always; its two devices are nothing alike.
DEVICES = [("cpu_ref", 0), ("cpu_ref", 1)] + [
    (name, 0) for name in registry().backends if name != "cpu_ref"
]


def _group(check: Check) -> str:
    """What belongs together: a level-2 group shares one load, so one test (and one worker of
    pytest-xdist) runs it; everything else is a group of its own."""
    level, *rest = check.id.split("/")
    if level != "2" or len(rest) < 3:  # no samples run: what an op says of itself is looked at
        return check.id
    op, *_, precision, tensors = rest  # between them the sample, and what was planted in it
    return f"2/{op}/{precision}/{tensors}"


#: Of level 2, what each device is asked here; `pytest --pyargs tflgpu.conformance` asks it all.
#: Drivers that compute on a CPU take minutes for each combination of a precision and a place of
#: the tensors. So all four are asked of the interpreter, and every API is asked one.
EVERYWHERE = ("f32/edge", "f32/internal", "f16/internal", "f32_f16/internal")
ASKED = {"cpu_ref:0": ("f32/edge",), "cpu_ref:1": EVERYWHERE}
#: What else the APIs are asked, by turns: each op of one of them. Packed layouts show inside a
#: partition, conversions where tensors are stored in 16 bits.
BY_TURNS = {"opencl": "f32_f16/internal", "vulkan": "f16/internal", "wgpu": "f16/internal"}


def _has_the_turn(backend: str, op: str) -> bool:
    """Whether it is this API that is asked more of an op."""
    return backend not in BY_TURNS or list(BY_TURNS).index(backend) == sum(op.encode()) % 3


def _worth_it(device: tuple[str, int], group: str) -> bool:
    level, op, *asked = group.split("/")
    if level == "3":  # random samples of an op
        return _has_the_turn(device[0], op)
    if level != "2":
        return True
    if len(asked) < 2:  # of the op alone: no device has a part in it
        return device == ("cpu_ref", 0)
    what = "/".join(asked)
    if device[0] in BY_TURNS:
        return what == "f32/edge" or (what == BY_TURNS[device[0]] and _has_the_turn(device[0], op))
    return what in ASKED.get(f"{device[0]}:{device[1]}", EVERYWHERE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checks" not in metafunc.fixturenames:
        return
    pairs: dict[str, tuple[tuple[str, int], list[Check]]] = {}
    for device in DEVICES:
        for check in Suite.of(registry(), device[0]).checks:
            group = _group(check)
            if _worth_it(device, group):
                name = f"{device[0]}:{device[1]}/{group}"
                pairs.setdefault(name, (device, []))[1].append(check)
    metafunc.parametrize(
        ("target", "checks"), pairs.values(), ids=pairs, indirect=["target"], scope="module"
    )


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return {name: Suite.of(registry(), name) for name, _ in DEVICES}


@pytest.fixture(scope="module")
def target(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Target]:
    backend, index = request.param
    require_backend(backend)
    opened = Target.open(registry(), backend, index)
    yield opened
    opened.close()


def test_conformance(checks: list[Check], target: Target, suites: dict[str, Suite]) -> None:
    verdicts = {c.id: suites[target.backend].judge(c, target) for c in checks}
    failed = {i: v.detail for i, v in verdicts.items() if v.status == "failed"}
    assert not failed, "\n".join(f"{i}: {detail}" for i, detail in failed.items())
    if all(v.status in ("refused", "inapplicable") for v in verdicts.values()):
        pytest.skip(next(iter(verdicts.values())).detail)
    if all(v.status == "expected" for v in verdicts.values()):
        pytest.xfail(next(iter(verdicts.values())).detail)
