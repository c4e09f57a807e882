"""Variables that stay on the device between runs: when they go there, who gets what they hold, what
failed and reset runs leave. Everything against LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import Interpreter
from tflgpu.errors import DeviceError, DeviceLostError, StateError, UnsupportedError
from tflgpu.flow.store import VariableStore
from tflgpu.runtime.state import QUIET
from tflgpu.tflite.model_file import SignatureInfo

from tests.flow.flow_models import (
    I32,
    RESOURCE,
    Op,
    accumulator,
    const,
    initializer,
    model,
    subgraph,
    tensor,
    variable,
)
from tests.flow.kept_variables import ADDING, ONCE, X, alike, litert, of_variables, step
from tests.running import allocated, set_and_run
from tests.watched_device import WatchedDevice

STEPS, SIZE = 7, 5
RNG = np.random.default_rng(7)


def cached() -> bytes:
    """A step of a decoder: keys and values of a token go into caches, and all so far are attended
    to."""
    cache, one = (1, STEPS, SIZE), (1, 1, SIZE)
    tensors = [
        tensor("x", one), tensor("at", (3,), I32), tensor("mask", (1, 1, STEPS)),
        *(const(f"w{n}", RNG.normal(size=SIZE)) for n in "qkv"),
        tensor("hk", (), RESOURCE), tensor("hv", (), RESOURCE),
        *(tensor(n, one) for n in ("q", "k", "v", "y")),
        *(tensor(n, cache) for n in ("k0", "k1", "v0", "v1")),
        *(tensor(n, (1, 1, STEPS)) for n in ("s", "m", "p")),
    ]  # fmt: skip
    ops: list[Op] = [
        ONCE, ("VAR_HANDLE", "", "hk", variable("k")), ("VAR_HANDLE", "", "hv", variable("v")),
        ("MUL", "x wq", "q"), ("MUL", "x wk", "k"), ("MUL", "x wv", "v"),
        ("READ_VARIABLE", "hk", "k0"), ("DYNAMIC_UPDATE_SLICE", "k0 k at", "k1"),
        ("ASSIGN_VARIABLE", "hk k1", ""),
        ("READ_VARIABLE", "hv", "v0"), ("DYNAMIC_UPDATE_SLICE", "v0 v at", "v1"),
        ("ASSIGN_VARIABLE", "hv v1", ""),
        ("BATCH_MATMUL", "q k1", "s", {"adj_y": True}), ("ADD", "s mask", "m"),
        ("SOFTMAX", "m", "p", {"beta": 1.0}), ("BATCH_MATMUL", "p v1", "y"),
    ]  # fmt: skip
    first = subgraph(
        [tensor("hk", (), RESOURCE), tensor("hv", (), RESOURCE), const("zeros", np.zeros(cache))],
        [
            ("VAR_HANDLE", "", "hk", variable("k")), ("VAR_HANDLE", "", "hv", variable("v")),
            ("ASSIGN_VARIABLE", "hk zeros", ""), ("ASSIGN_VARIABLE", "hv zeros", ""),
        ],
        "", "",
    )  # fmt: skip
    return model(subgraph(tensors, ops, "x at mask", "y"), first)


CACHED = cached()
TOKENS = [
    (
        RNG.normal(size=(1, 1, SIZE)).astype(np.float32),
        np.array([0, at, 0], np.int32),
        np.where(np.arange(STEPS) <= at, 0, -1e9).astype(np.float32).reshape(1, 1, STEPS),
    )
    for at in range(STEPS)
]


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl"])
def test_a_cache_stays_on_the_device(
    backend: str, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine = opened(CACHED, backend=backend, device=1 if backend == "cpu_ref" else 0)
    theirs = litert(CACHED)
    report = mine.report
    (refusal,) = report.refusals
    assert refusal.op == "CALL_ONCE"  # which runs once
    assert refusal.reason == (
        "the host runs it once; subgraph 1 has operators of the host only (ASSIGN_VARIABLE, "
        "VAR_HANDLE)"
    )
    assert report.partitions == 1
    tokens = TOKENS if backend == "opencl" else TOKENS[: QUIET + 2]
    for given in tokens:
        np.testing.assert_allclose(step(mine, *given), step(theirs, *given), rtol=1e-5, atol=1e-6)
    if backend == "cpu_ref":
        assert device.runs == len(tokens)
        assert device.moved == (2, 0)  # both caches went there, once


def test_what_is_a_result_as_well_is_read_and_stays(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine = opened()
    assert set(of_variables(mine).values()) == {""}
    alike(mine, litert(ADDING), QUIET + 4)
    assert device.moved == (1, 4)  # of each run since it went


@pytest.mark.parametrize("runs", [1, QUIET + 2], ids=["at home", "away"])
def test_reset_lets_it_begin_with_its_first_value(
    runs: int, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine = opened()
    for _ in range(2):
        alike(mine, litert(ADDING), runs)
        mine.reset_all_variables()
    alike(mine, litert(ADDING), 1)


def signed() -> bytes:
    """Signatures that add to a variable, get it, set it, and multiply it."""
    handle, old, new = tensor("h", (), RESOURCE), tensor("old"), tensor("new")
    named: Op = ("VAR_HANDLE", "", "h", variable())
    get = subgraph([handle, tensor("y")], [named, ("READ_VARIABLE", "h", "y")], "", "y")
    put = subgraph(
        [tensor("x"), handle, const("one", 1), tensor("y")],
        [named, ("ASSIGN_VARIABLE", "h x", ""), ("ADD", "x one", "y")], "x", "y",
    )  # fmt: skip
    times = subgraph(
        [tensor("x"), handle, old, new],
        [
            named, ("READ_VARIABLE", "h", "old"), ("MUL", "old x", "new"),
            ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "x", "new",
    )  # fmt: skip
    signatures = [
        SignatureInfo("add", 0, {"x": 0}, {"y": 3}), SignatureInfo("get", 2, {}, {"y": 1}),
        SignatureInfo("put", 3, {"x": 0}, {"y": 3}), SignatureInfo("times", 4, {"x": 0}, {"y": 3}),
    ]  # fmt: skip
    return model(accumulator(ONCE), initializer([10, 20]), get, put, times, signatures=signatures)


def test_signatures_share_it(device: WatchedDevice, opened: Callable[..., Any]) -> None:
    content = signed()
    mine, theirs = opened(content), LiteRT(model_content=content)
    runners = [
        {key: made.get_signature_runner(key) for key in ("add", "get", "put", "times")}
        for made in (mine, theirs)
    ]
    calls = (
        "add get add add add get add get put add times add times times times times add get put get"
    )
    for n, key in enumerate(calls.split()):
        given = {} if key == "get" else {"x": (X * (1 + n % 3)).astype(np.float32)}
        found, expected = (side[key](**given)["y"] for side in runners)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=f"call {n}, {key}")
    assert device.writes > 1  # it was on the device, and went there again


def test_another_signature_that_takes_it_for_another_type_is_told(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    other = subgraph(
        [tensor("x", dtype=I32), tensor("h", (), RESOURCE), tensor("a", dtype=I32),
         tensor("b", dtype=I32)],
        [("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "a"), ("ADD", "a x", "b"),
         ("ASSIGN_VARIABLE", "h b", "")],
        "x", "b",
    )  # fmt: skip
    signatures = [
        SignatureInfo("add", 0, {"x": 0}, {"y": 3}),
        SignatureInfo("whole", 2, {"x": 0}, {"y": 3}),
    ]
    content = model(accumulator(ONCE), initializer([10, 20]), other, signatures=signatures)
    mine, theirs = opened(content), litert(ADDING)
    for runs in (1, QUIET + 1):
        alike(mine, theirs, runs)
        with pytest.raises(StateError, match="holds float32, and is read as i32"):
            mine.get_signature_runner("whole")(x=np.array([1, 2], np.int32))
    alike(mine, theirs, 1)


def test_interpreters_have_one_each(device: WatchedDevice, opened: Callable[..., Any]) -> None:
    one, other, theirs = opened(), opened(), litert(ADDING)
    alike(one, theirs, QUIET + 2)
    alike(other, litert(ADDING), QUIET + 2)
    alike(one, theirs, 2)


def test_it_outlives_allocation_and_other_shapes(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    """Of which one becomes the variable's own: what was assigned has two dimensions then."""
    mine, theirs = opened(), litert(ADDING)
    for n, shape in enumerate(((2,), (1, 2), (2,))):
        for made in (mine, theirs):
            made.resize_tensor_input(0, shape)
            made.allocate_tensors()
        for _ in range(QUIET + 2):
            found, expected = (step(made, X.reshape(shape)) for made in (mine, theirs))
            assert found.shape == ((2,) if not n else (1, 2))
            np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-6)
    assert device.writes == 3


@pytest.mark.parametrize("error", [DeviceError("no"), KeyboardInterrupt()], ids=["error", "signal"])
@pytest.mark.parametrize("runs", [1, QUIET + 2], ids=["at home", "away"])
def test_a_run_that_did_not_end_leaves_it(
    error: BaseException, runs: int, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine, theirs = opened(), litert(ADDING)
    alike(mine, theirs, runs)
    device.fails = [error]
    with pytest.raises(type(error)):
        step(mine, X * 100)
    alike(mine, theirs, 3)


@pytest.mark.parametrize("runs", [0, 1, QUIET, QUIET + 2])
def test_what_fails_after_the_piece_has_run_leaves_it(
    runs: int, device: WatchedDevice, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has committed by then: the run is taken back."""
    mine, theirs = opened(), litert(ADDING)
    alike(mine, theirs, runs)
    owned = VariableStore.owned

    def interrupted(self: VariableStore, *args: Any) -> None:
        owned(self, *args)
        raise KeyboardInterrupt

    for _ in range(2):
        monkeypatch.setattr(VariableStore, "owned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(mine, X * 100)
        monkeypatch.setattr(VariableStore, "owned", owned)
    alike(mine, theirs, 3)


def test_a_result_that_cannot_be_read_is_a_run_that_failed(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine, theirs = opened(), litert(ADDING)
    alike(mine, theirs, QUIET + 2)
    device.unreadable = DeviceError("not now")
    with pytest.raises(DeviceError, match="not now"):
        step(mine, X * 100)
    device.unreadable = None
    alike(mine, theirs, 2)


def test_a_device_that_does_not_give_it_back(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    """Nobody goes on with a state that is not the model's."""
    mine = opened()
    alike(mine, litert(ADDING), QUIET + 2)
    device.fails = [DeviceLostError("gone")]
    device.unreadable = DeviceLostError("nothing can be read")
    with pytest.raises(DeviceLostError):
        step(mine, X)
    for _ in range(2):
        with pytest.raises(StateError, match=r"nothing can be read.*reset_all_variables"):
            step(mine, X)
    mine.reset_all_variables()
    device.unreadable = None
    alike(mine, litert(ADDING), QUIET + 2)


HOME: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"on_error": "cpu"}, "on_error"),
    "retry": ({"on_error": "retry"}, "on_error"),
    "timeout": ({"run_timeout": 60}, "run_timeout"),
    "bands": ({"guard_bands": True}, "guard_bands"),
    "guard": ({"accuracy_guard": 2}, "accuracy_guard"),
    "nodes": ({"device": 0}, "runs operators as they are"),
}


@pytest.mark.parametrize("name", HOME)
def test_it_stays_where_a_device_may_never_give_it_back(
    name: str, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    """Whatever becomes of the device, the variable was never there only."""
    options, said = HOME[name]
    mine, theirs = opened(**options), litert(ADDING)
    assert all(said in reason for reason in of_variables(mine).values())
    alike(mine, theirs, QUIET + 1)
    if name in ("cpu", "retry"):
        device.fails = [DeviceLostError("no")]
        device.unreadable = DeviceLostError("nothing can be read")
    alike(mine, theirs, QUIET + 1)
    assert not device.fails
    assert device.moved == (0, 0)


def test_a_device_without_buffers_says_so_when_it_is_asked(
    device: WatchedDevice, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu.lowering.rule import Unsupported
    from tflgpu_cpu_ref.device import CpuRefDevice

    monkeypatch.setattr(CpuRefDevice, "_allocate_buffer", lambda *_: Unsupported("no buffers here"))
    mine = opened()
    alike(mine, litert(ADDING), QUIET + 2)
    assert all("no buffers here" in reason for reason in of_variables(mine).values())
    assert device.moved == (0, 0)


def test_a_device_that_nobody_asked_for_keeps_none(
    device: WatchedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    with allocated(Interpreter(model_content=ADDING)) as mine:
        assert all("nobody asked" in reason for reason in of_variables(mine).values())
        theirs = litert(ADDING)
        alike(mine, theirs, QUIET + 2)
        device.fails = [DeviceLostError("gone")]
        alike(mine, theirs, QUIET + 2)
        assert not device.fails
        assert device.moved == (0, 0)


def test_runs_in_flight_take_it_over_and_bound_tensors_are_refused(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    mine, theirs = opened(), litert(ADDING)
    alike(mine, theirs, QUIET + 2)
    run = mine.invoke_async({0: X})
    set_and_run(theirs, {0: X})
    for detail, got in zip(theirs.get_output_details(), run.results(), strict=True):
        np.testing.assert_array_equal(got, theirs.get_tensor(detail["index"]))
    with pytest.raises(UnsupportedError, match="control flow, resource variables"):
        mine.bind_input(0, X.copy())
    alike(mine, theirs, 2)
