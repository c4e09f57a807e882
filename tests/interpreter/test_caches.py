"""Outputs that are inputs of the next call: they stay on the device, and signatures share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError, InputError, OptionError
from tflgpu.interpreter.bound_runs import BoundRuns

from tests.interpreter import interpreter_models as models
from tests.interpreter.cache_models import ROOM, VOCABULARY, WIDTH, language_model
from tests.watched_device import WatchedDevice

litert = pytest.importorskip("ai_edge_litert.interpreter")
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 12).astype(np.int32)


def step(tokens: Any, at: int) -> dict[str, Any]:
    row = np.atleast_1d(np.asarray(tokens, np.int32))
    return {"tokens": row[None], "input_pos": np.arange(at, at + len(row), dtype=np.int32)}


def expected(steps: int = 8) -> tuple[list[Any], Any]:
    """Logits of decode steps after a chunk of four, and the cache at the end, by LiteRT."""
    theirs = litert.Interpreter(model_content=language_model())
    prefill, decode = (theirs.get_signature_runner(k) for k in ("prefill_4", "decode"))
    cache = np.zeros((1, ROOM, WIDTH), np.float32)
    cache = prefill(**step(TOKENS[:4], 0), kv_cache_k_0=cache)["kv_cache_k_0"]
    logits = []
    for at in range(4, 4 + steps):
        made = decode(**step(TOKENS[at], at), kv_cache_k_0=cache)
        cache = made["kv_cache_k_0"]
        logits.append(made["logits"])
    return logits, cache


def run(model: tflgpu.Interpreter, steps: int = 8) -> tuple[list[Any], tflgpu.SignatureRunner]:
    prefill = model.get_signature_runner("prefill_4", carry=True)
    decode = model.get_signature_runner("decode", carry=True)
    assert prefill(**step(TOKENS[:4], 0)) == {}
    logits = []
    for at in range(4, 4 + steps):
        made = decode(**step(TOKENS[at], at))
        assert made.keys() == {"logits"}
        logits.append(made["logits"])
    return logits, decode


def interpreter(delegate: Any, content: bytes | None = None) -> tflgpu.Interpreter:
    return tflgpu.Interpreter(
        model_content=content or language_model(),
        experimental_delegates=[] if delegate is None else [delegate],
    )


def assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_steps_are_equal_to_litert(delegate: Any) -> None:
    logits, cache = expected()
    with interpreter(delegate) as model:
        found, decode = run(model)
        assert_close(found, logits)
        assert decode.carried == {"kv_cache_k_0": "kv_cache_k_0"}
        assert_close(decode.read_caches()["kv_cache_k_0"], cache)
        assert len(model._bound[1]._lanes) == 2  # bound crosswise, and never again
        decode.reset_caches()
        assert not decode.read_caches()["kv_cache_k_0"].any()
        again, _ = run(model)
        np.testing.assert_array_equal(again, found)


def test_without_a_device() -> None:
    logits, cache = expected()
    with interpreter(None) as model:
        found, decode = run(model)
        assert_close(found, logits)
        assert_close(decode.read_caches()["kv_cache_k_0"], cache)


def test_no_byte_of_a_cache_is_copied(require_backend: Callable[[str], Any]) -> None:
    """Where device and host do not share memory: tokens and positions go there, logits come."""
    require_backend("wgpu")
    with tflgpu.GpuDelegate(backend="wgpu") as delegate, interpreter(delegate) as model:
        _, decode = run(model)
        assert decode.copied == type(decode.copied)(8 * (4 + 4), 8 * 4 * VOCABULARY)
        assert model._bound[0].copied == (4 * (4 + 4), 0)


def test_a_cache_may_be_given(reference: Any) -> None:
    given = np.random.default_rng(4).standard_normal((1, ROOM, WIDTH)).astype(np.float32)
    with interpreter(reference) as model, interpreter(reference) as plain:
        decode = model.get_signature_runner("decode", carry=True)
        found = decode(**step(5, 3), kv_cache_k_0=given)
        wanted = plain.get_signature_runner("decode")(**step(5, 3), kv_cache_k_0=given)
        np.testing.assert_array_equal(found["logits"], wanted["logits"])
        np.testing.assert_array_equal(decode.read_caches()["kv_cache_k_0"], wanted["kv_cache_k_0"])


def test_memory_for_one_lane_only(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is bound anew for each run then."""
    logits, _ = expected()
    made = BoundRuns._made

    def refuse(self: BoundRuns) -> Any:
        subgraph = made(self)

        def allocate() -> None:
            raise DeviceError("no memory")

        subgraph.allocate = allocate
        return subgraph

    monkeypatch.setattr(BoundRuns, "_made", refuse)
    with interpreter(reference) as model:
        found, _ = run(model)
        assert_close(found, logits)
        assert len(model._bound[1]._lanes) == 1


def test_mistakes(reference: Any) -> None:
    with interpreter(reference) as model:
        decode = model.get_signature_runner("decode", carry={"kv_cache_k_0": "kv_cache_k_0"})
        with pytest.raises(InputError, match="takes input_pos, tokens"):
            decode(tokens=np.zeros((1, 1), np.int32))
        for carry, said in (
            ({"logits": "tokens"}, r"output 'logits' \(float32\[1, 1, 37\]\) cannot become input"),
            ({"nothing": "tokens"}, "has no output 'nothing'; there are kv_cache_k_0, logits"),
            ({"logits": "nothing"}, "has no input 'nothing'"),
        ):
            with pytest.raises(OptionError, match=said):
                model.get_signature_runner("decode", carry=carry)
        with pytest.raises(OptionError, match="carry"):
            model.get_signature_runner("decode", carry="yes please")
    other = interpreter(reference, models.chain())
    with other as model:  # nothing has one name: as without
        runner = model.get_signature_runner("serve", carry=True)
        assert runner.carried == {}
        assert runner.read_caches() == {}
        x = np.ones((1, 3), np.float32)
        np.testing.assert_array_equal(runner(image=x)["scores"], (x + models.C) * models.C)


def test_signatures_of_caches_of_two_shapes(reference: Any) -> None:
    with interpreter(reference) as model:
        prefill = model.get_signature_runner("prefill_4", carry=True)
        decode = model.get_signature_runner("decode", carry=True)
        prefill(**step(TOKENS[:4], 0))
        cache = model._caches["kv_cache_k_0"]
        cache.shape = (1, ROOM * WIDTH, 1)
        with pytest.raises(InputError, match=r"'kv_cache_k_0' is float32\[1, 13, 5\] in signature"):
            decode(**step(TOKENS[4], 4))


def test_a_cache_that_one_signature_cannot_bind_moves_to_the_host(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, cache = expected()
    with interpreter(reference) as model:
        prefill = model.get_signature_runner("prefill_4", carry=True)
        prefill(**step(TOKENS[:4], 0))
        assert model._caches["kv_cache_k_0"].array is None
        monkeypatch.setattr(
            type(model._bound[0]), "_stays_on_host", lambda self, index: self is not model._bound[0]
        )
        found, decode = run(model)
        assert model._caches["kv_cache_k_0"].array is not None
        assert_close(found, logits)
        assert_close(decode.read_caches()["kv_cache_k_0"], cache)


def test_lanes_and_signatures_share_weights(reference: Any) -> None:
    with interpreter(reference) as model:
        decode = model.get_signature_runner("decode", carry=True)
        decode(**step(TOKENS[0], 0))
        weights = reference.memory.weights
        run(model)
        assert len(model._bound[1]._lanes) == 2
        assert reference.memory.weights == weights > 0


def test_signatures_have_reports(reference: Any) -> None:
    with interpreter(reference) as model:
        decode = model.get_signature_runner("decode", carry=True)
        assert decode.report.fully_delegated
        assert len(decode.report.operators) == 10
        assert model.delegation_report("prefill_4").total_nodes == 4
        assert model.delegation_report("decode").dispatches == decode.report.dispatches
        with pytest.raises(InputError, match="no signature 'nothing'"):
            model.delegation_report("nothing")


@pytest.mark.parametrize(
    "error", [DeviceError("no"), DeviceLostError("gone")], ids=["failed", "lost"]
)
def test_after_a_run_that_failed(error: DeviceError, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = WatchedDevice(monkeypatch)
    logits, _ = expected()
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        interpreter(delegate) as model,
    ):
        _, decode = run(model, 5)
        faults.fails = [error]
        with pytest.raises(type(error), match=str(error)):
            decode(**step(TOKENS[9], 9))
        if not isinstance(error, DeviceLostError):  # the caches are as before the run
            for at in range(9, 12):
                assert_close(decode(**step(TOKENS[at], at))["logits"], logits[at - 4])
        decode.reset_caches()
        again, _ = run(model)
        assert_close(again, logits)
        assert faults.opened == 1 + isinstance(error, DeviceLostError)
