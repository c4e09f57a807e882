"""Networks that are too large to ship, with random weights, as `.tflite` files.

    python -m benchmarks.networks FOLDER mobilenet_v2 resnet50 vit_b vit_s decoder_f16 decoder_i8

`benchmarks.torch_networks` runs the same networks with the same weights in torch. A decoder is the
matrix-vector part of one step of a language model with 616 million weights, without attention.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

Weights = Mapping[str, npt.NDArray[np.float32]]

TOKENS, IMAGE, PATCH, CLASSES = 197, 224, 16, 1000
#: Channels and heads of each ViT; both have 12 layers.
VITS = {"vit_b": (768, 12), "vit_s": (384, 6)}
LAYERS = 12
#: Channels of a decoder, and of its feed-forward layers.
DECODER = (2048, 5632)
#: Blocks, and channels within, of ResNet-50's four stages.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
#: MobileNet v2's blocks: how many times wider they are within, channels, repeats, first stride.
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def _random(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
    """Weights (outputs first) that keep the variance of what they are multiplied by."""
    fan = float(np.prod(shape[1:]))
    weights: npt.NDArray[np.float32] = rng.standard_normal(shape, dtype=np.float32)
    weights *= np.float32(np.sqrt(gain / fan))
    return weights


def resnet_weights() -> Weights:
    """Of ResNet-50: OHWI, by the layer's name; biases are zeros."""
    rng = np.random.default_rng(0)
    found = {"stem": _random(rng, 64, 7, 7, 3, gain=2.0)}
    inner = 64
    for stage, (blocks, width) in enumerate(STAGES):
        for block in range(blocks):
            name = f"{stage}.{block}"
            found[f"{name}.a"] = _random(rng, width, 1, 1, inner, gain=2.0)
            found[f"{name}.b"] = _random(rng, width, 3, 3, width, gain=2.0)
            found[f"{name}.c"] = _random(rng, 4 * width, 1, 1, width, gain=0.5)
            if block == 0:
                found[f"{name}.skip"] = _random(rng, 4 * width, 1, 1, inner, gain=0.5)
            inner = 4 * width
    return found | {"head": _random(rng, CLASSES, inner)}


def inverted_blocks() -> Iterator[tuple[str, int, int, int, int]]:
    """MobileNet v2's blocks: the name, channels in, within and out, stride."""
    inner = 32
    for stage, (wider, outer, repeats, stride) in enumerate(INVERTED):
        for block in range(repeats):
            yield f"{stage}.{block}", inner, inner * wider, outer, stride if not block else 1
            inner = outer


def mobilenet_weights() -> Weights:
    """Of MobileNet v2: OHWI, of depthwise convolutions 1HWO; biases are zeros."""
    rng = np.random.default_rng(0)
    found = {"stem": _random(rng, 32, 3, 3, 3, gain=2.0)}
    for name, inner, wide, outer, _ in inverted_blocks():
        if wide > inner:
            found[f"{name}.wide"] = _random(rng, wide, 1, 1, inner, gain=2.0)
        found[f"{name}.depth"] = _random(rng, wide, 3, 3, 1, gain=2.0).transpose(3, 1, 2, 0)
        found[f"{name}.narrow"] = _random(rng, outer, 1, 1, wide)
    found["last"] = _random(rng, 1280, 1, 1, INVERTED[-1][1], gain=2.0)
    return found | {"head": _random(rng, CLASSES, 1280)}


def vit_weights(channels: int) -> Weights:
    """Of a ViT/16 of 12 layers: outputs x inputs, by the layer's name; biases are zeros."""
    rng, wide = np.random.default_rng(0), 4 * channels
    found = {
        "patch": _random(rng, channels, PATCH, PATCH, 3),
        "class": _random(rng, 1, 1, channels),
        "positions": _random(rng, 1, TOKENS, channels),
        "head": _random(rng, CLASSES, channels),
    }
    for i in range(LAYERS):
        found[f"{i}.qkv"] = _random(rng, 3 * channels, channels)
        found[f"{i}.out"] = _random(rng, channels, channels)
        found[f"{i}.up"] = _random(rng, wide, channels)
        found[f"{i}.down"] = _random(rng, channels, wide)
    return found


def decoder_weights(layers: int = LAYERS) -> Iterator[tuple[str, npt.NDArray[np.int8], float]]:
    """Of a decoder's step, one at a time: the name, 8-bit numbers, and their scale."""
    rng, (channels, wide) = np.random.default_rng(0), DECODER
    shapes = dict.fromkeys("qkvo", (channels, channels))
    shapes |= {"gate": (wide, channels), "up": (wide, channels), "down": (channels, wide)}
    for i in range(layers):
        for name, shape in shapes.items():
            numbers = rng.integers(-127, 128, shape, dtype=np.int8)
            yield f"{i}.{name}", numbers, float(np.float32(1 / 73 / np.sqrt(shape[1])))


@attrs.define
class _File:
    """A graph of one input, being written operator by operator; tensors are named by index."""

    tensors: list[TensorSpec] = attrs.Factory(list)
    operators: list[OperatorSpec] = attrs.Factory(list)

    def tensor(self, shape: tuple[int, ...], data: Any = None, dtype: DType = DType.F32,
               **more: Any) -> int:  # fmt: skip
        self.tensors.append(TensorSpec(f"t{len(self.tensors)}", shape, dtype, data, **more))
        return len(self.tensors) - 1

    def reals(self, data: npt.ArrayLike) -> int:
        array = np.ascontiguousarray(data, np.float32)
        return self.tensor(array.shape, array)

    def whole(self, data: npt.ArrayLike) -> int:
        array = np.asarray(data, np.int32)
        return self.tensor(array.shape, array, DType.I32)

    def shape(self, index: int) -> tuple[int, ...]:
        return self.tensors[index].shape

    def add(self, op: str, inputs: list[int], shape: tuple[int, ...], version: int = 1,
            **options: Any) -> int:  # fmt: skip
        result = self.tensor(shape)
        self.operators.append(OperatorSpec(op, options, tuple(inputs), (result,), version))
        return result

    def dense(self, x: int, weights: npt.ArrayLike) -> int:
        """FULLY_CONNECTED over the last axis."""
        w = np.asarray(weights, np.float32)
        inputs = [x, self.reals(w), self.reals(np.zeros(w.shape[0]))]
        shape = (*self.shape(x)[:-1], w.shape[0])
        return self.add("FULLY_CONNECTED", inputs, shape, keep_num_dims=len(shape) > 2)

    def convolution(self, x: int, weights: npt.ArrayLike, stride: int, *, relu: bool) -> int:
        """CONV_2D whose borders are padded as torch pads them: by half of the window."""
        w = np.asarray(weights, np.float32)
        border = w.shape[1] // 2
        x = self.padded(x, border) if border and w.shape[1] < PATCH else x
        _, height, width, _ = self.shape(x)
        shape = (1, *((size - w.shape[1]) // stride + 1 for size in (height, width)), w.shape[0])
        inputs = [x, self.reals(w), self.reals(np.zeros(w.shape[0]))]
        return self.add("CONV_2D", inputs, shape, padding=1, stride_w=stride, stride_h=stride,
                        dilation_w_factor=1, dilation_h_factor=1,
                        fused_activation_function=int(relu))  # fmt: skip

    def same(self, op: str, x: int, weights: npt.ArrayLike, stride: int, activation: int) -> int:
        """A convolution, of one kind or the other, that is padded as TFLite pads (SAME)."""
        w = np.asarray(weights, np.float32)
        _, height, width, _ = self.shape(x)
        outer = w.shape[3 if op == "DEPTHWISE_CONV_2D" else 0]
        shape = (1, -(-height // stride), -(-width // stride), outer)
        more = {"depth_multiplier": 1} if op == "DEPTHWISE_CONV_2D" else {}
        inputs = [x, self.reals(w), self.reals(np.zeros(outer))]
        return self.add(op, inputs, shape, padding=0, stride_w=stride, stride_h=stride,
                        dilation_w_factor=1, dilation_h_factor=1,
                        fused_activation_function=activation, **more)  # fmt: skip

    def padded(self, x: int, border: int) -> int:
        n, height, width, channels = self.shape(x)
        sides = self.whole([[0, 0], [border, border], [border, border], [0, 0]])
        return self.add("PAD", [x, sides], (n, height + 2 * border, width + 2 * border, channels))

    def layer_norm(self, x: int) -> int:
        """As the operators that converters write for a normalization without parameters."""
        shape, last = self.shape(x), self.whole([len(self.shape(x)) - 1])
        one = (*shape[:-1], 1)
        mean = self.add("MEAN", [x, last], one, keep_dims=True)
        square = self.add("SQUARED_DIFFERENCE", [x, mean], shape)
        variance = self.add("MEAN", [square, last], one, keep_dims=True)
        root = self.add("RSQRT", [self.add("ADD", [variance, self.reals([1e-6])], one)], one)
        return self.add("MUL", [self.add("SUB", [x, mean], shape), root], shape)

    def rms_norm(self, x: int) -> int:
        shape, one = self.shape(x), (*self.shape(x)[:-1], 1)
        square = self.add("MUL", [x, x], shape)
        mean = self.add("MEAN", [square, self.whole([len(shape) - 1])], one, keep_dims=True)
        root = self.add("RSQRT", [self.add("ADD", [mean, self.reals([1e-6])], one)], one)
        return self.add("MUL", [x, root], shape)

    def write(self, path: Path, source: int, result: int) -> None:
        spec = ModelSpec(tuple(self.tensors), tuple(self.operators), (source,), (result,))
        path.write_bytes(write_model(spec))


def _resnet50(path: Path) -> None:
    net, weights = _File(), resnet_weights()
    source = net.tensor((1, IMAGE, IMAGE, 3))
    x = net.padded(net.convolution(source, weights["stem"], 2, relu=True), 1)
    size = (net.shape(x)[1] - 3) // 2 + 1
    x = net.add("MAX_POOL_2D", [x], (1, size, size, 64), padding=1, stride_w=2, stride_h=2,
                filter_width=3, filter_height=3)  # fmt: skip
    for stage, (blocks, _) in enumerate(STAGES):
        for block in range(blocks):
            name, stride = f"{stage}.{block}", 2 if stage and not block else 1
            y = net.convolution(x, weights[f"{name}.a"], 1, relu=True)
            y = net.convolution(y, weights[f"{name}.b"], stride, relu=True)
            y = net.convolution(y, weights[f"{name}.c"], 1, relu=False)
            if block == 0:
                x = net.convolution(x, weights[f"{name}.skip"], stride, relu=False)
            x = net.add("ADD", [x, y], net.shape(y), fused_activation_function=1)
    x = net.add("MEAN", [x, net.whole([1, 2])], (1, net.shape(x)[3]), keep_dims=False)
    result = net.add("SOFTMAX", [net.dense(x, weights["head"])], (1, CLASSES), beta=1.0)
    net.write(path, source, result)


def _mobilenet_v2(path: Path) -> None:
    net, weights, relu6 = _File(), mobilenet_weights(), 3
    source = net.tensor((1, IMAGE, IMAGE, 3))
    x = net.same("CONV_2D", source, weights["stem"], 2, relu6)
    for name, inner, _, outer, stride in inverted_blocks():
        y = x
        if f"{name}.wide" in weights:
            y = net.same("CONV_2D", y, weights[f"{name}.wide"], 1, relu6)
        y = net.same("DEPTHWISE_CONV_2D", y, weights[f"{name}.depth"], stride, relu6)
        y = net.same("CONV_2D", y, weights[f"{name}.narrow"], 1, 0)
        x = net.add("ADD", [x, y], net.shape(y)) if (inner, stride) == (outer, 1) else y
    x = net.same("CONV_2D", x, weights["last"], 1, relu6)
    x = net.add("MEAN", [x, net.whole([1, 2])], (1, net.shape(x)[3]), keep_dims=False)
    result = net.add("SOFTMAX", [net.dense(x, weights["head"])], (1, CLASSES), beta=1.0)
    net.write(path, source, result)


def _vit(path: Path, name: str) -> None:
    channels, heads = VITS[name]
    net, weights, width = _File(), vit_weights(channels), channels // heads
    source = net.tensor((1, IMAGE, IMAGE, 3))
    x = net.convolution(source, weights["patch"], PATCH, relu=False)
    rows = (1, TOKENS - 1, channels)
    x = net.add("RESHAPE", [x, net.whole(rows)], rows)
    tokens = (1, TOKENS, channels)
    x = net.add("CONCATENATION", [net.reals(weights["class"]), x], tokens, axis=1)
    x = net.add("ADD", [x, net.reals(weights["positions"])], tokens)
    for i in range(LAYERS):
        y = net.dense(net.layer_norm(x), weights[f"{i}.qkv"])
        y = _attention(net, y, heads, width)
        x = net.add("ADD", [x, net.dense(y, weights[f"{i}.out"])], tokens)
        y = net.dense(net.layer_norm(x), weights[f"{i}.up"])
        y = net.add("GELU", [y], net.shape(y))
        x = net.add("ADD", [x, net.dense(y, weights[f"{i}.down"])], tokens)
    ends = [net.whole(at) for at in ([0, 0, 0], [1, 1, channels], [1, 1, 1])]
    x = net.add("STRIDED_SLICE", [net.layer_norm(x), *ends], (1, 1, channels))
    x = net.add("RESHAPE", [x, net.whole([1, channels])], (1, channels))
    net.write(path, source, net.dense(x, weights["head"]))


def _attention(net: _File, packed: int, heads: int, width: int) -> int:
    apart = (1, TOKENS, 3, heads, width)
    packed = net.add("RESHAPE", [packed, net.whole(apart)], apart)
    moved = (3, 1, heads, TOKENS, width)
    packed = net.add("TRANSPOSE", [packed, net.whole([2, 0, 3, 1, 4])], moved, 5)
    parts = []
    for i in range(3):
        ends = [net.whole(at) for at in ([i, 0, 0, 0, 0], [i + 1, *moved[1:]], [1] * 5)]
        part = net.add("STRIDED_SLICE", [packed, *ends], (1, *moved[1:]), 4)
        parts.append(net.add("RESHAPE", [part, net.whole(moved[1:])], moved[1:]))
    square = (1, heads, TOKENS, TOKENS)
    scores = net.add("BATCH_MATMUL", parts[:2], square, adj_y=True)
    scores = net.add("MUL", [scores, net.reals([width**-0.5])], square)
    shares = net.add("SOFTMAX", [scores], square, beta=1.0)
    y = net.add("BATCH_MATMUL", [shares, parts[2]], moved[1:])
    back = (1, TOKENS, heads, width)
    y = net.add("TRANSPOSE", [y, net.whole([0, 2, 1, 3])], back)
    joined = (1, TOKENS, heads * width)
    return net.add("RESHAPE", [y, net.whole(joined)], joined)


def _decoder(path: Path, kind: str) -> None:
    net, (channels, wide) = _File(), DECODER
    weights = {name: (numbers, scale) for name, numbers, scale in decoder_weights()}
    source = x = net.tensor((1, channels))

    def dense(x: int, name: str) -> int:
        numbers, scale = weights[name]
        if kind == "i8":
            rows = numbers.shape[0]
            quantization = Quantization((scale,) * rows, (0,) * rows, 0)
            w = net.tensor(numbers.shape, numbers, DType.I8, quantization=quantization)
        else:
            half = (numbers * np.float32(scale)).astype(np.float16)
            half_tensor = net.tensor(half.shape, half, DType.F16)
            w = net.add("DEQUANTIZE", [half_tensor], numbers.shape)
        version = 3 if kind == "i8" else 1
        return net.add("FULLY_CONNECTED", [x, w, -1], (1, numbers.shape[0]), version)

    for i in range(LAYERS):
        y = net.rms_norm(x)
        q, k, v = (dense(y, f"{i}.{name}") for name in "qkv")
        share = net.add("LOGISTIC", [net.add("ADD", [q, k], (1, channels))], (1, channels))
        y = net.add("MUL", [v, share], (1, channels))
        x = net.add("ADD", [x, dense(y, f"{i}.o")], (1, channels))
        y = net.rms_norm(x)
        gate, up = dense(y, f"{i}.gate"), dense(y, f"{i}.up")
        y = net.add("MUL", [gate, net.add("LOGISTIC", [gate], (1, wide))], (1, wide))
        y = net.add("MUL", [y, up], (1, wide))
        x = net.add("ADD", [x, dense(y, f"{i}.down")], (1, channels))
    net.write(path, source, net.rms_norm(x))


NETWORKS: Mapping[str, Callable[[Path], None]] = {
    "mobilenet_v2": _mobilenet_v2,
    "resnet50": _resnet50,
    "vit_b": partial(_vit, name="vit_b"),
    "vit_s": partial(_vit, name="vit_s"),
    "decoder_f16": partial(_decoder, kind="f16"),
    "decoder_i8": partial(_decoder, kind="i8"),
}


def main() -> None:
    """Write the networks of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=list(NETWORKS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        NETWORKS[name](given.folder / f"{name}.tflite")
        print(given.folder / f"{name}.tflite", flush=True)


if __name__ == "__main__":
    main()
