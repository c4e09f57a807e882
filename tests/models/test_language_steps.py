"""Eight decode steps of exported language models, with caches that stay where they are: equal to
LiteRT's. With TFLGPU_MODELS naming a folder that has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu

litert = pytest.importorskip("ai_edge_litert.interpreter")
BACKENDS = {"opencl": 0, "wgpu": 0}


def arguments(inputs: dict[str, Any], at: int) -> dict[str, Any]:
    """Inputs of a step other than caches, as runtimes for these models fill them."""
    count = int(inputs["tokens"]["shape"][1])
    tokens = np.random.default_rng(at).integers(0, 100, (1, count)).astype(np.int32)
    places = np.arange(at, at + count, dtype=np.int32)
    found = {"tokens": tokens, "input_pos": places}
    if "mask" in inputs:
        room = inputs["mask"]["shape"][-1]
        seen = np.arange(room) <= places[:, None]
        found["mask"] = seen.reshape(inputs["mask"]["shape"])
    if "param_tensor" in inputs:
        numbers = np.zeros(inputs["param_tensor"]["shape"], np.int32)
        numbers.reshape(-1)[:3] = at, at + count, at + count
        found["param_tensor"] = numbers
    return found


def copying_steps(model: Any, steps: int) -> list[Any]:
    prefill, decode = (model.get_signature_runner(key) for key in ("prefill_8", "decode"))
    inputs = decode.get_input_details()
    caches = {n: np.zeros(d["shape"], d["dtype"]) for n, d in inputs.items() if n[:2] == "kv"}
    made = prefill(**arguments(prefill.get_input_details(), 0), **caches)
    logits = []
    for at in range(8, 8 + steps):
        made = decode(**arguments(inputs, at), **{name: made[name] for name in caches})
        logits.append(made["logits"])
    return logits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["hf_llama_gpu", "hf_qwen3_all", "smollm_int4b32"])
def test_eight_steps(
    name: str,
    backend: str,
    model_path: Callable[[str], Path],
    require_backend: Callable[[str], Any],
) -> None:
    path = str(model_path(name))
    require_backend(backend)
    with (
        tflgpu.GpuDelegate(backend=backend, device=BACKENDS[backend]) as delegate,
        tflgpu.Interpreter(path, experimental_delegates=[delegate]) as model,
    ):
        prefill = model.get_signature_runner("prefill_8", carry=True)
        decode = model.get_signature_runner("decode", carry=True)
        prefill(**arguments(prefill.get_input_details(), 0))
        inputs = decode.get_input_details()
        found = [decode(**arguments(inputs, at))["logits"] for at in range(8, 16)]
        given = sum(array.nbytes for array in arguments(inputs, 8).values())
        assert decode.report.fully_delegated
        assert decode.copied.to_device <= 8 * 4 * given  # booleans lie as 4 bytes
        assert decode.copied.to_host <= 8 * found[0].nbytes
    wanted = copying_steps(litert.Interpreter(path), 8)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
