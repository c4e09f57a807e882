"""The model and the images of `tflgpu demo`: handwritten digits, made by
`examples/train_digits.py`. NOTICE says where the images are from (CC BY 4.0)."""

from __future__ import annotations

from importlib.resources import files

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array


@attrs.frozen(eq=False)
class Digits:
    """A digit classifier and images that it was not trained on.

    Attributes:
        model: A `.tflite` file: image f32 [1,8,8,1] of 0 to 1, probabilities f32 [1,10].
        images: f32 [N,1,8,8,1], each ready to be an input.
        labels: The digits they show, [N].
    """

    model: bytes
    images: Array
    labels: Array


def load_digits() -> Digits:
    """The digits that ship with tflgpu."""
    folder = files(__name__)
    with (folder / "digits.npz").open("rb") as file, np.load(file) as data:
        pixels, labels = data["images"], data["labels"]  # whole numbers from 0 to 16
    images = (pixels / np.float32(16)).astype(np.float32).reshape(-1, 1, 8, 8, 1)
    return Digits((folder / "digits.tflite").read_bytes(), images, labels)
