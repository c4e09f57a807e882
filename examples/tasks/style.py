"""A photo in, a picture out: styles, super-resolution, denoising.

    python examples/tasks/style.py cat.jpg                  # embossed, by a model made here
    python examples/tasks/style.py cat.jpg --model transfer.tflite --style style.npy

A model of style transfer has a second input, the style's vector, which its companion (the style
predictor) gives: `tflgpu.Task(predictor, kind="embed")(painting).vector`.
"""

from __future__ import annotations

import argparse

import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


def embosser(size: int = 256) -> bytes:
    """A convolution of 3x3 pixels for each colour, and a sigmoid: f32 [1, size, size, 3]."""
    edges = np.array([[-4, -2, 0], [-2, 0.5, 2], [0, 2, 4]], np.float32)
    tensors = [
        TensorSpec("image", (1, size, size, 3)),
        TensorSpec("edges", (1, 3, 3, 3), data=np.repeat(edges[None, :, :, None], 3, 3)),
        TensorSpec("bias", (3,), data=np.zeros(3, np.float32)),
        TensorSpec("sums", (1, size, size, 3)),
        TensorSpec("made", (1, size, size, 3)),
    ]
    one = {"stride_w": 1, "stride_h": 1, "depth_multiplier": 1}
    operators = [
        OperatorSpec("DEPTHWISE_CONV_2D", one, [0, 1, 2], [3]),
        OperatorSpec("LOGISTIC", {}, [3], [4]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [4]))


def main() -> None:
    """Save the picture that the model makes as styled.png."""
    parser = argparse.ArgumentParser(description="A photo in, a picture out.")
    parser.add_argument("photo")
    parser.add_argument("--model", help="a .tflite file with a picture as its output")
    parser.add_argument("--style", help="a .npy file for the second input")
    parser.add_argument("--mean", type=float, help="subtracted from pixels of 0 to 255")
    parser.add_argument("--std", type=float, help="divides them")
    given = parser.parse_args()
    more = [] if given.style is None else [given.style]
    model = embosser() if given.model is None else given.model
    with tflgpu.Task(model, kind="image", mean=given.mean, std=given.std) as task:
        answer = task(given.photo, *more)
        print(f"{answer.said}: {answer}")
        answer.draw().save("styled.png")


if __name__ == "__main__":
    main()
