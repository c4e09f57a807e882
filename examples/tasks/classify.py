"""Say what is in photos, by a classifier.

    python examples/tasks/classify.py                       # a handwritten digit, by our own model
    python examples/tasks/classify.py --model mobilenet.tflite --labels labels.txt cat.jpg dog.jpg

A model with metadata needs no --labels. `--mean` and `--std` say what the model takes, where the
file does not: pixels of 0 to 255 become (pixel - mean) / std.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tflgpu
from PIL import Image
from tflgpu.demo import load_digits


def main() -> None:
    """Print the likeliest classes of each photo."""
    parser = argparse.ArgumentParser(description="Say what is in photos.")
    parser.add_argument("photos", nargs="*", help="any size; none for a digit of the demo's")
    parser.add_argument("--model", type=Path, help="a .tflite classifier; the demo's digits")
    parser.add_argument("--labels", type=Path, help="names of the classes, one a line")
    parser.add_argument("--mean", type=float, help="subtracted from pixels")
    parser.add_argument("--std", type=float, help="divides pixels")
    given = parser.parse_args()
    options = {"mean": given.mean, "std": given.std, "labels": given.labels}
    photos = list(given.photos)
    model: Path | bytes = given.model
    if given.model is None:
        digits = load_digits()
        model = digits.model
        options = {"mean": 0, "std": 255, "labels": [f"a {n}" for n in range(10)]}
        if not photos:
            # A digit as a photo would have it: a picture of any size.
            pixels = np.rint(digits.images[0, 0, :, :, 0] * 255).astype(np.uint8)
            Image.fromarray(pixels).resize((160, 160), Image.Resampling.NEAREST).save("digit.png")
            print(f"digit.png shows a {digits.labels[0]}")
            photos = ["digit.png"]
    elif not photos:
        parser.error("give photos")
    with tflgpu.Task(model, kind="classify", **options) as task:
        for photo in photos:
            answer = task(photo)
            print(f"{photo}: {answer.said}\n{answer}")


if __name__ == "__main__":
    main()
