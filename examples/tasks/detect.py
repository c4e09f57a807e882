"""Find things in a photo, and draw boxes around them.

    python examples/tasks/detect.py                         # coloured squares, by a model made here
    python examples/tasks/detect.py --model ssd.tflite --labels coco.txt street.jpg

SSD models with raw boxes need --anchors, a .csv or .npy of y, x, height and width from 0 to 1.
"""

from __future__ import annotations

import argparse

import numpy as np
import tflgpu
from PIL import Image, ImageDraw
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


def square_finder() -> bytes:
    """In YOLO's form, f32 [1, 64, 8]: each cell's x, y, width, height, a 1, and its colours."""
    y, x = (np.mgrid[:8, :8].reshape(2, -1) + 0.5) / 8
    boxes = np.stack([x, y, np.full(64, 1 / 8), np.full(64, 1 / 8), np.ones(64)], 1)
    tensors = [
        TensorSpec("image", (1, 64, 64, 3)),
        TensorSpec("cells", (1, 8, 8, 3)),
        TensorSpec("colours", (1, 64, 3)),
        TensorSpec("boxes", (1, 64, 5), data=boxes[None].astype(np.float32)),
        TensorSpec("found", (1, 64, 8)),
    ]
    pool = {"filter_width": 8, "filter_height": 8, "stride_w": 8, "stride_h": 8, "padding": 1}
    operators = [
        OperatorSpec("AVERAGE_POOL_2D", pool, [0], [1]),
        OperatorSpec("RESHAPE", {"new_shape": (1, 64, 3)}, [1], [2]),
        OperatorSpec("CONCATENATION", {"axis": 2}, [3, 2], [4]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [4]))


def main() -> None:
    """Print what was found, and save the photo with boxes as found.png."""
    parser = argparse.ArgumentParser(description="Find things in a photo.")
    parser.add_argument("photo", nargs="?", help="none for a picture of squares")
    for name in ("--model", "--labels", "--anchors"):
        parser.add_argument(name, help="a file")
    given = parser.parse_args()
    model, photo, options = given.model, given.photo, {"labels": given.labels}
    if model is None:
        model, photo = square_finder(), Image.new("RGB", (256, 256))
        for box, colour in (((32, 64, 63, 95), "red"), ((160, 128, 191, 159), "blue")):
            ImageDraw.Draw(photo).rectangle(box, colour)
        options = {"labels": ["red", "green", "blue"], "mean": 0, "std": 255, "kind": "detect"}
    with tflgpu.Task(model, anchors=given.anchors, **options) as task:
        print(answer := task(photo))
        answer.draw().save("found.png")


if __name__ == "__main__":
    main()
