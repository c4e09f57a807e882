"""Train the digit classifier of `tflgpu demo`, in NumPy, and write it as a `.tflite` file.

    pip install "tflgpu[examples]"
    python examples/train_digits.py

The data are scikit-learn's 1,797 handwritten digits of 8x8 pixels (UCI ML hand-written digits,
CC BY 4.0). Everything is seeded: two runs on one machine write the same bytes. The network is
small, and has the layers that mobile vision models are made of:

    image [N,8,8,1] -> CONV_2D 3x3, 8 -> relu -> DEPTHWISE_CONV_2D 3x3 -> relu
                    -> CONV_2D 1x1, 16 -> relu -> MAX_POOL_2D 2x2
                    -> RESHAPE [N,256] -> FULLY_CONNECTED 10 -> SOFTMAX
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

Floats = npt.NDArray[np.float32]
Weights = dict[str, Floats]

SEED = 20
HELD_OUT = 360
EPOCHS = 40
BATCH = 32
RATE = 3e-3
SAME, VALID = 0, 1  # `Padding` in the TFLite schema
NO_ACTIVATION, RELU = 0, 1  # `ActivationFunctionType`


def initial_weights(rng: np.random.Generator) -> Weights:
    """He-scaled weights, in TFLite's layouts: OHWI, 1HWC for depthwise, [out, in] for dense."""

    def draw(*shape: int, fan_in: int) -> Floats:
        drawn: Floats = (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        return drawn

    return {
        "conv": draw(8, 3, 3, 1, fan_in=9),
        "conv_bias": np.zeros(8, np.float32),
        "depthwise": draw(1, 3, 3, 8, fan_in=9),
        "depthwise_bias": np.zeros(8, np.float32),
        "pointwise": draw(16, 1, 1, 8, fan_in=8),
        "pointwise_bias": np.zeros(16, np.float32),
        "dense": draw(10, 256, fan_in=256),
        "dense_bias": np.zeros(10, np.float32),
    }


def patches(image: Floats) -> Floats:
    """[N,H,W,C] -> [N,H,W,9,C]: what each pixel's 3x3 window sees, zeros outside."""
    height, width = image.shape[1:3]
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.stack(taps, axis=3)


def unpatch(gradient: Floats) -> Floats:
    """The transpose of `patches`: [N,H,W,9,C] -> [N,H,W,C]."""
    n, height, width, _, channels = gradient.shape
    padded = np.zeros((n, height + 2, width + 2, channels), np.float32)
    for tap in range(9):
        i, j = divmod(tap, 3)
        padded[:, i : i + height, j : j + width] += gradient[:, :, :, tap]
    return padded[:, 1:-1, 1:-1]


def forward(weights: Weights, image: Floats) -> tuple[Floats, Weights]:
    """Class probabilities [N,10], and what the way back needs."""
    seen = patches(image)
    a = np.maximum(
        np.einsum("nhwtc,otc->nhwo", seen, weights["conv"].reshape(8, 9, 1), optimize=True)
        + weights["conv_bias"], 0,
    )  # fmt: skip
    seen_a = patches(a)
    b = np.maximum(
        np.einsum("nhwtc,tc->nhwc", seen_a, weights["depthwise"].reshape(9, 8), optimize=True)
        + weights["depthwise_bias"], 0,
    )  # fmt: skip
    c = np.maximum(b @ weights["pointwise"].reshape(16, 8).T + weights["pointwise_bias"], 0)
    n = len(image)
    windows = c.reshape(n, 4, 2, 4, 2, 16).transpose(0, 1, 3, 5, 2, 4).reshape(n, 4, 4, 16, 4)
    pooled = windows.max(axis=-1)
    logits = pooled.reshape(n, 256) @ weights["dense"].T + weights["dense_bias"]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    kept = {"seen": seen, "a": a, "seen_a": seen_a, "b": b, "c": c, "windows": windows,
            "pooled": pooled}  # fmt: skip
    return probabilities, kept


def backward(
    weights: Weights, probabilities: Floats, kept: Weights, labels: npt.NDArray[np.int64]
) -> Weights:
    """Gradients of the mean cross-entropy."""
    n = len(labels)
    g = probabilities.copy()
    g[np.arange(n), labels] -= 1
    g /= n
    gradients = {"dense": g.T @ kept["pooled"].reshape(n, 256), "dense_bias": g.sum(axis=0)}
    g = (g @ weights["dense"]).reshape(n, 4, 4, 16, 1)
    windows = kept["windows"]
    # Only the first of equal maxima passes the gradient on.
    first = np.arange(4) == windows.argmax(axis=-1)[..., None]
    g = (g * first).reshape(n, 4, 4, 16, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(n, 8, 8, 16)
    g = g * (kept["c"] > 0)
    gradients["pointwise"] = np.einsum("nhwo,nhwc->oc", g, kept["b"], optimize=True)
    gradients["pointwise_bias"] = g.sum(axis=(0, 1, 2))
    g = (g @ weights["pointwise"].reshape(16, 8)) * (kept["b"] > 0)
    gradients["depthwise"] = np.einsum("nhwc,nhwtc->tc", g, kept["seen_a"], optimize=True)
    gradients["depthwise_bias"] = g.sum(axis=(0, 1, 2))
    g = unpatch(g[:, :, :, None, :] * weights["depthwise"].reshape(9, 8)) * (kept["a"] > 0)
    gradients["conv"] = np.einsum("nhwo,nhwtc->otc", g, kept["seen"], optimize=True)
    gradients["conv_bias"] = g.sum(axis=(0, 1, 2))
    return {name: gradients[name].reshape(w.shape) for name, w in weights.items()}


def train(images: Floats, labels: npt.NDArray[np.int64], rng: np.random.Generator) -> Weights:
    """Adam with a cosine schedule; digits are shifted sideways by up to one pixel for variety."""
    weights = initial_weights(rng)
    first = {name: np.zeros_like(w) for name, w in weights.items()}
    second = {name: np.zeros_like(w) for name, w in weights.items()}
    steps = EPOCHS * (len(images) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        loss = 0.0
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            # Columns at the edges are mostly blank, so a roll is a shift; rows are full.
            shifted = np.roll(images[chosen], int(rng.integers(-1, 2)), axis=2)
            probabilities, kept = forward(weights, shifted)
            loss -= float(np.log(probabilities[np.arange(BATCH), labels[chosen]] + 1e-9).mean())
            gradients = backward(weights, probabilities, kept, labels[chosen])
            step += 1
            rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
            for name, gradient in gradients.items():
                first[name] += 0.1 * (gradient - first[name])
                second[name] += 0.001 * (gradient * gradient - second[name])
                mean = first[name] / (1 - 0.9**step)
                scale = np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
                weights[name] -= (rate * mean / scale).astype(np.float32)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3}: loss {loss / (len(images) // BATCH):.4f}")
    return weights


def as_tflite(weights: Weights) -> bytes:
    """The trained network for one image, as the bytes of a `.tflite` file."""
    tensors = [TensorSpec("image", (1, 8, 8, 1))]

    def add(name: str, shape: tuple[int, ...], data: npt.ArrayLike | None = None) -> int:
        tensors.append(TensorSpec(name, shape, data=data))
        return len(tensors) - 1

    constant = {name: add(name, w.shape, w) for name, w in weights.items()}
    features = add("features", (1, 8, 8, 8))
    spread = add("spread", (1, 8, 8, 8))
    mixed = add("mixed", (1, 8, 8, 16))
    pooled = add("pooled", (1, 4, 4, 16))
    flat = add("flat", (1, 256))
    logits = add("logits", (1, 10))
    digit = add("digit", (1, 10))
    window = {"padding": SAME, "stride_h": 1, "stride_w": 1, "fused_activation_function": RELU}
    operators = [
        OperatorSpec(
            "CONV_2D", window, (0, constant["conv"], constant["conv_bias"]), (features,)
        ),
        OperatorSpec(
            "DEPTHWISE_CONV_2D",
            {**window, "depth_multiplier": 1},
            (features, constant["depthwise"], constant["depthwise_bias"]),
            (spread,),
        ),
        OperatorSpec(
            "CONV_2D",
            window,
            (spread, constant["pointwise"], constant["pointwise_bias"]),
            (mixed,),
        ),
        OperatorSpec(
            "MAX_POOL_2D",
            {"padding": VALID, "stride_h": 2, "stride_w": 2, "filter_height": 2,
             "filter_width": 2, "fused_activation_function": NO_ACTIVATION},
            (mixed,),
            (pooled,),
        ),
        OperatorSpec("RESHAPE", {"new_shape": (1, 256)}, (pooled,), (flat,)),
        OperatorSpec(
            "FULLY_CONNECTED",
            {"fused_activation_function": NO_ACTIVATION},
            (flat, constant["dense"], constant["dense_bias"]),
            (logits,),
        ),
        OperatorSpec("SOFTMAX", {"beta": 1.0}, (logits,), (digit,)),
    ]  # fmt: skip
    return write_model(
        ModelSpec(
            tensors,
            operators,
            inputs=(0,),
            outputs=(digit,),
            description="handwritten digits, 8x8 pixels of 0 to 1; examples/train_digits.py",
        )
    )


def main() -> None:
    """Train, test on the digits held out, write both files."""
    package = Path(__file__).resolve().parents[1] / "core" / "tflgpu" / "demo"
    parser = argparse.ArgumentParser(description="Train the digit classifier of `tflgpu demo`.")
    parser.add_argument("--output", type=Path, default=package, help="folder to write to")
    folder: Path = parser.parse_args().output

    data = load_digits()
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(data.target))
    pixels = data.images[order].astype(np.uint8)  # whole numbers from 0 to 16
    labels = data.target[order]
    images = (pixels / np.float32(16)).astype(np.float32)[..., None]

    weights = train(images[HELD_OUT:], labels[HELD_OUT:], rng)
    probabilities, _ = forward(weights, images[:HELD_OUT])
    accuracy = float((probabilities.argmax(axis=1) == labels[:HELD_OUT]).mean())
    print(f"accuracy on {HELD_OUT} digits held out: {100 * accuracy:.1f} %")

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "digits.tflite").write_bytes(as_tflite(weights))
    np.savez_compressed(
        folder / "digits.npz", images=pixels[:HELD_OUT], labels=labels[:HELD_OUT].astype(np.uint8)
    )
    for name in ("digits.tflite", "digits.npz"):
        print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
