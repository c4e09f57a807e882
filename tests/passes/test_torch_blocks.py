"""Blocks of networks as litert-torch exports them: how many kernels are left of their operators,
and that these give what LiteRT gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.test_found_attention import Building
from tests.passes.torch_layers import check, drawn, mean, ops, ran
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
pytestmark = pytest.mark.usefixtures("passes_alone")

CHANNELS, SIDE = 8, 4


class Network(Building):
    """Layers with drawn weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(9)

    def weights(self, *shape: int) -> int:
        return self.const(self.rng.normal(size=shape) * 0.3)

    def norm(self, x: int) -> int:
        *lead, channels = self.shape(x)
        axes = (0, len(lead)) if lead[0] == 1 else (len(lead),)
        average = mean(self, x, *axes)
        gap = self.with_("SQUARED_DIFFERENCE", x, self.reshaped(average, *lead, 1))
        total = self.with_("ADD", mean(self, gap, *axes), self.const(1e-5))
        root = self.op("RSQRT", [total], self.shape(total))
        shift = self.with_("SUB", self.const(0.0), self.with_("MUL", average, root))
        y = self.with_("MUL", x, self.reshaped(root, *lead, 1))
        y = self.with_("ADD", y, self.reshaped(shift, *lead, 1))
        return self.with_(
            "ADD", self.with_("MUL", y, self.weights(channels)), self.weights(channels)
        )

    def dense(self, x: int, units: int, *, keep: bool = True) -> int:
        """With ``keep`` a layer of sequences, else of all their rows."""
        *lead, channels = self.shape(x)
        shape = (*lead, units) if keep else (int(np.prod(lead)), units)
        inputs = [x, self.weights(units, channels), self.weights(units)]
        return self.op("FULLY_CONNECTED", inputs, shape, keep_num_dims=keep)

    def conv(self, x: int, side: int) -> int:
        """Of patches of so many pixels that do not overlap."""
        items, height, width, channels = self.shape(x)
        weights = [self.weights(channels, side, side, channels), self.weights(channels)]
        shape = (items, height // side, width // side, channels)
        return self.op("CONV_2D", [x, *weights], shape, stride_h=side, stride_w=side, padding=1)

    def depthwise(self, x: int) -> int:
        channels = self.shape(x)[-1]
        inputs = [x, self.weights(1, 3, 3, channels), self.weights(channels)]
        return self.op(
            "DEPTHWISE_CONV_2D", inputs, self.shape(x), stride_h=1, stride_w=1, padding=0,
            depth_multiplier=1,
        )  # fmt: skip

    def gelu(self, x: int) -> int:
        return self.op("GELU", [x], self.shape(x))

    def tokens(self, x: int) -> int:
        """Of an image, by way of channels first."""
        items, height, width, channels = self.shape(x)
        x = self.reshaped(self.transposed(x, 0, 3, 1, 2), items, channels, height * width)
        return self.transposed(x, 0, 2, 1)

    def image(self, x: int) -> int:
        items, count, channels = self.shape(x)
        x = self.reshaped(self.transposed(x, 0, 2, 1), items, channels, SIDE, count // SIDE)
        return self.transposed(x, 0, 2, 3, 1)

    def heads(self, x: int, count: int) -> int:
        _, tokens, channels = self.shape(x)
        return self.transposed(self.reshaped(x, 1, tokens, count, channels // count), 0, 2, 1, 3)

    def attention(self, q: int, k: int, v: int, count: int) -> int:
        """Of tokens; what heads make is one row again."""
        queries, tokens, width = self.shape(q)[1], self.shape(k)[1], self.shape(q)[2] // count
        q, k, v = (self.heads(x, count) for x in (q, k, v))
        q, k = (self.with_("MUL", x, self.const(width**-0.25)) for x in (q, k))
        k = self.transposed(k, 0, 1, 3, 2)
        if count > 1:
            q, k = self.reshaped(q, count, queries, width), self.reshaped(k, count, width, tokens)
            shares = self.softmax(self.reshaped(self.product(q, k), 1, count, queries, tokens))
            shares, v = (
                self.reshaped(shares, count, queries, tokens),
                self.reshaped(v, count, tokens, width),
            )
            y = self.product(shares, v)
        else:  # products of two matrices
            k = self.transposed(self.reshaped(k, width, tokens), 1, 0)
            inputs = [self.reshaped(q, queries, width), k]
            scores = self.op("FULLY_CONNECTED", inputs, (queries, tokens))
            shares = self.softmax(self.reshaped(scores, 1, 1, queries, tokens))
            v = self.transposed(self.reshaped(v, tokens, width), 1, 0)
            inputs = [self.reshaped(shares, queries, tokens), v]
            y = self.op("FULLY_CONNECTED", inputs, (queries, width))
        y = self.transposed(self.reshaped(y, 1, count, queries, width), 0, 2, 1, 3)
        return self.reshaped(y, queries, count * width)


def convnext() -> bytes:
    b = Network()
    x = b.given(1, SIDE, SIDE, CHANNELS)
    y = b.dense(b.gelu(b.dense(b.norm(b.depthwise(x)), 2 * CHANNELS)), CHANNELS, keep=False)
    y = b.transposed(b.reshaped(y, *b.shape(x)), 0, 3, 1, 2)
    y = b.transposed(b.with_("MUL", y, b.weights(1, CHANNELS, 1, 1)), 0, 2, 3, 1)
    return b.model(b.with_("ADD", x, y))


def segformer(heads: int) -> bytes:
    """Keys and values of patches, and a convolution between the dense layers."""
    b = Network()
    x = b.tokens(b.conv(b.given(1, SIDE, SIDE, CHANNELS), 1))
    y = b.norm(x)
    few = b.norm(b.tokens(b.conv(b.image(y), 2)))
    q, k, v = (b.dense(each, CHANNELS) for each in (y, few, few))
    x = b.with_("ADD", x, b.dense(b.attention(q, k, v, heads), CHANNELS))
    y = b.image(b.dense(b.norm(x), 2 * CHANNELS))
    y = b.gelu(b.tokens(b.depthwise(y)))
    return b.model(b.image(b.with_("ADD", x, b.dense(y, CHANNELS, keep=False))))


def detr() -> bytes:
    """Of queries and a memory, which layers of attention have with tokens first."""
    b = Network()
    x, memory = b.given(1, 6, CHANNELS), b.given(1, 10, CHANNELS)

    def attended(x: int, other: int) -> int:
        rows = [b.dense(b.transposed(each, 1, 0, 2), CHANNELS) for each in (x, other, other)]
        q, k, v = (b.transposed(each, 1, 0, 2) for each in rows)
        y = b.reshaped(b.dense(b.attention(q, k, v, 2), CHANNELS), b.shape(x)[1], 1, CHANNELS)
        return b.norm(b.with_("ADD", x, b.transposed(y, 1, 0, 2)))

    x = attended(attended(x, x), memory)
    y = b.dense(b.gelu(b.dense(x, 2 * CHANNELS)), CHANNELS, keep=False)
    return b.model(b.norm(b.with_("ADD", x, y)))


@pytest.mark.parametrize(
    ("content", "kernels", "off"),
    [
        (convnext(), 4, "keep_dims"),
        (convnext(), 4, "sink_reshapes"),
        (segformer(2), 12, "merge_moves"),
        (segformer(2), 12, "find_attention"),
        (segformer(1), 12, "find_attention"),
        (segformer(1), 12, "keep_dims"),
        (detr(), 12, "find_attention"),
    ],
)
def test_blocks(content: bytes, kernels: int, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(content, kernels, off, monkeypatch, 1e-5)


@pytest.mark.parametrize("content", [segformer(2), segformer(1), detr()])
def test_no_moves_are_left(content: bytes) -> None:
    assert not {"TRANSPOSE", "SLICE", "BATCH_MATMUL", "SOFTMAX"} & set(ops(content))


def test_several_items_of_a_block() -> None:
    content = convnext()
    given = np.concatenate([drawn(content)[0] * n for n in (1, 0.5, -1)])
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 4
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_allclose(ours, outputs(theirs)[0][0], rtol=0, atol=1e-5)
