"""Colour a photo by what each pixel shows.

    python examples/tasks/segment.py
    python examples/tasks/segment.py --model deeplab.tflite --labels pascal.txt cat.jpg

The first colours sky and grass, by a model made here.
"""

from __future__ import annotations

import argparse

import numpy as np
import tflgpu
from PIL import Image, ImageDraw
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

NAMES = ["neither", "sky", "grass"]


def colour_finder(size: int = 128) -> bytes:
    """A convolution of one pixel and a softmax: f32 [1, size, size, 3] of class scores."""
    weights = np.array([[0, 0, 0], [-4, -4, 8], [-4, 8, -4]], np.float32)
    tensors = [
        TensorSpec("image", (1, size, size, 3)),
        TensorSpec("weights", (3, 1, 1, 3), data=weights.reshape(3, 1, 1, 3)),
        TensorSpec("bias", (3,), data=np.array([1, 0, 0], np.float32)),
        *(TensorSpec(name, (1, size, size, 3)) for name in ("sums", "classes")),
    ]
    operators = [
        OperatorSpec("CONV_2D", {"stride_w": 1, "stride_h": 1}, [0, 1, 2], [3]),
        OperatorSpec("SOFTMAX", {"beta": 1.0}, [3], [4]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [4]))


def main() -> None:
    """Print how much of the photo each class has, and save it coloured as mask.png."""
    parser = argparse.ArgumentParser(description="Colour a photo by what each pixel shows.")
    parser.add_argument("photo", nargs="?", help="none for a landscape")
    parser.add_argument("--model", help="a .tflite segmenter; one that knows sky and grass")
    parser.add_argument("--labels", help="names of the classes, one a line")
    given = parser.parse_args()
    model, photo, options = given.model, given.photo, {"labels": given.labels}
    if model is None:
        model, photo = colour_finder(), Image.new("RGB", (300, 200), (90, 150, 250))
        ImageDraw.Draw(photo).rectangle((0, 120, 299, 199), (60, 160, 40))
        ImageDraw.Draw(photo).ellipse((120, 70, 180, 130), (200, 190, 180))
        options = {"labels": NAMES, "mean": 0, "std": 255}
    with tflgpu.Task(model, kind="segment", **options) as task:
        answer = task(photo)
        print(answer)
        answer.draw().save("mask.png")


if __name__ == "__main__":
    main()
