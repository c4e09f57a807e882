"""Find the points of a body in a photo: nose, shoulders, knees.

    python examples/tasks/pose.py --model posenet.tflite runner.jpg

A trained model is needed: PoseNet (posenet_mobilenet_v1_100_257x257_multi_kpt_stripped.tflite, of
TensorFlow's model page), MoveNet, or MediaPipe's pose_landmark_full.tflite with `--mean 0 --std
255`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tflgpu


def main() -> None:
    """Print the points, and save the photo with a skeleton as pose.png."""
    parser = argparse.ArgumentParser(description="Find the points of a body in a photo.")
    parser.add_argument("photo", help="of one person, the whole body")
    parser.add_argument("--model", required=True, type=Path, help="PoseNet, MoveNet or MediaPipe's")
    parser.add_argument("--mean", type=float, help="subtracted from pixels of 0 to 255")
    parser.add_argument("--std", type=float, help="divides them")
    parser.add_argument("--threshold", type=float, default=0.3, help="of points that are drawn")
    given = parser.parse_args()
    if not given.model.is_file():
        parser.error(
            f"there is no file {given.model}: give PoseNet "
            "(posenet_mobilenet_v1_100_257x257_multi_kpt_stripped.tflite), MoveNet, or MediaPipe's "
            "pose_landmark_full.tflite"
        )
    options = {"mean": given.mean, "std": given.std, "threshold": given.threshold}
    # The whole body stays in proportion: the model sees it between black edges.
    with tflgpu.Task(given.model, kind="keypoints", resize="pad", **options) as task:
        answer = task(given.photo)
        print(f"{answer.said}\n{answer}")
        answer.draw().save("pose.png")


if __name__ == "__main__":
    main()
