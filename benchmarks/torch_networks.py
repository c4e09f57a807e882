"""The networks of `benchmarks.networks` in torch on CUDA: f16, a CUDA graph, NumPy in to NumPy out.

    python -m benchmarks.torch_networks mobilenet_v2 resnet50 vit_b vit_s decoder_f16
        --json torch.json

With ``--check FOLDER`` results are compared with those of the `.tflite` files in it, on the CPU.
Needs torch with a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.networks import (
    CLASSES,
    DECODER,
    IMAGE,
    LAYERS,
    PATCH,
    STAGES,
    TOKENS,
    VITS,
    Weights,
    decoder_weights,
    inverted_blocks,
    mobilenet_weights,
    resnet_weights,
    vit_weights,
)

Array = npt.NDArray[np.float32]
NAMES = ("mobilenet_v2", "resnet50", *VITS, "decoder_f16")


def _half(weights: Weights) -> dict[str, Any]:
    """On the GPU as f16; filters as torch has them, outputs and inputs before their windows."""
    import torch

    found = {}
    for name, array in weights.items():
        tensor = torch.from_numpy(array).cuda().half()
        if array.ndim == 4:
            tensor = tensor.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        found[name] = tensor
    return found


def _resnet50() -> Callable[[Any], Any]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    weights = _half(resnet_weights())

    def run(x: Any) -> Any:
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        x = F.relu(F.conv2d(x, weights["stem"], stride=2, padding=3))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage, (blocks, _) in enumerate(STAGES):
            for block in range(blocks):
                name, stride = f"{stage}.{block}", 2 if stage and not block else 1
                y = F.relu(F.conv2d(x, weights[f"{name}.a"]))
                y = F.relu(F.conv2d(y, weights[f"{name}.b"], stride=stride, padding=1))
                y = F.conv2d(y, weights[f"{name}.c"])
                if block == 0:
                    x = F.conv2d(x, weights[f"{name}.skip"], stride=stride)
                x = F.relu(x + y)
        return F.softmax(F.linear(x.mean((2, 3)), weights["head"]), -1)

    return run


def _mobilenet_v2() -> Callable[[Any], Any]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    weights = _half(mobilenet_weights())

    def same(x: Any, name: str, stride: int, *, grouped: bool = False) -> Any:
        w, groups = weights[name], 1
        if grouped:
            w, groups = w.transpose(0, 1).contiguous(), w.shape[1]
        if w.shape[-1] == 1:
            return F.conv2d(x, w)
        if stride == 1:
            return F.conv2d(x, w, padding=1, groups=groups)
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), w, stride=2, groups=groups)

    def run(x: Any) -> Any:
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        x = F.relu6(same(x, "stem", 2))
        for name, inner, _, outer, stride in inverted_blocks():
            y = x
            if f"{name}.wide" in weights:
                y = F.relu6(same(y, f"{name}.wide", 1))
            y = same(F.relu6(same(y, f"{name}.depth", stride, grouped=True)), f"{name}.narrow", 1)
            x = x + y if (inner, stride) == (outer, 1) else y
        x = F.relu6(same(x, "last", 1))
        return F.softmax(F.linear(x.mean((2, 3)), weights["head"]), -1)

    return run


def _vit(name: str) -> Callable[[Any], Any]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    channels, heads = VITS[name]
    weights = _half(vit_weights(channels))

    def norm(x: Any) -> Any:
        return F.layer_norm(x, (channels,), eps=1e-6)

    def run(x: Any) -> Any:
        n = x.shape[0]
        x = F.conv2d(x.permute(0, 3, 1, 2), weights["patch"], stride=PATCH)
        x = x.flatten(2).transpose(1, 2)
        first = weights["class"].expand(n, 1, channels)
        x = torch.cat([first, x], 1) + weights["positions"]
        for i in range(LAYERS):
            packed = F.linear(norm(x), weights[f"{i}.qkv"])
            q, k, v = packed.reshape(n, TOKENS, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = x + F.linear(y.reshape(n, TOKENS, channels), weights[f"{i}.out"])
            y = F.gelu(F.linear(norm(x), weights[f"{i}.up"]))
            x = x + F.linear(y, weights[f"{i}.down"])
        return F.linear(norm(x)[:, 0], weights["head"])

    return run


def _decoder() -> Callable[[Any], Any]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    weights = {
        name: (torch.from_numpy(numbers).cuda() * np.float32(scale)).half()
        for name, numbers, scale in decoder_weights()
    }

    def norm(x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def run(x: Any) -> Any:
        for i in range(LAYERS):
            y = norm(x)
            q, k, v = (F.linear(y, weights[f"{i}.{name}"]) for name in "qkv")
            x = x + F.linear(v * torch.sigmoid(q + k), weights[f"{i}.o"])
            y = norm(x)
            gate, up = (F.linear(y, weights[f"{i}.{name}"]) for name in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, weights[f"{i}.down"])
        return norm(x)

    return run


class _Graph:
    """A network as a CUDA graph, with the copies from and to pinned memory in it."""

    def __init__(self, network: Callable[[Any], Any], source: tuple[int, ...], result: int) -> None:
        import torch

        self._torch = torch
        self._pinned = torch.empty(source).pin_memory()
        self._result = torch.empty(source[0], result).pin_memory()
        placed = torch.empty(source, device="cuda")

        def step() -> None:
            placed.copy_(self._pinned, non_blocking=True)
            self._result.copy_(network(placed.half()), non_blocking=True)

        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(5):
                    step()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                step()

    def __call__(self, x: Array) -> Array:
        self._pinned.numpy()[...] = x
        self._graph.replay()
        self._torch.cuda.synchronize()
        found: Array = self._result.numpy().copy()
        return found


def _network(name: str) -> tuple[Callable[[Any], Any], tuple[int, ...], int]:
    if name == "decoder_f16":
        return _decoder(), (1, DECODER[0]), DECODER[0]
    others = {"mobilenet_v2": _mobilenet_v2, "resnet50": _resnet50}
    made = others[name]() if name in others else _vit(name)
    return made, (1, IMAGE, IMAGE, 3), CLASSES


def measure(name: str, batch: int, seconds: float) -> tuple[float, Array, Array]:
    """Milliseconds of a run (the median), an input, and its result."""
    network, source, result = _network(name)
    source = (batch, *source[1:])
    graph = _Graph(network, source, result)
    x = np.random.default_rng(0).uniform(-1, 1, source).astype(np.float32)
    times: list[float] = []
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + 2 * seconds or len(times) < 50:
        graph(x)
        if now >= begun + seconds:  # before, the clocks rise
            times.append(time.perf_counter() - now)
    return float(np.median(times)) * 1e3, x, graph(x)


def _check(path: Path, x: Array, found: Array) -> str:
    import tflgpu

    with tflgpu.Interpreter(str(path)) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    return f", relative error {error:.1e}"


def main() -> None:
    """Time the networks of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of warm-up, and of measuring")
    parser.add_argument("--check", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    medians = {}
    for name in given.names:
        ms, x, result = measure(name, given.batch, given.seconds)
        checked = _check(given.check / f"{name}.tflite", x, result) if given.check else ""
        print(f"{name} batch {given.batch}: {ms:.3f} ms{checked}", flush=True)
        medians[name] = ms
    if given.json:
        given.json.write_text(json.dumps({"torch f16, CUDA graph": medians}, indent=1))


if __name__ == "__main__":
    main()
