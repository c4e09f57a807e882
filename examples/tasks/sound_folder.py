"""A table of what is heard in a folder of recordings: BirdNET and its like.

    python examples/tasks/sound_folder.py recordings --model birdnet.tflite --labels labels.txt \
        --rate 48000 --threshold 0.5 > heard.csv

Each recording is cut into windows of the model's length; each class above the threshold in a window
is a row: file, start and end in seconds (no end where the file is shorter), name, score.
`pandas.read_csv("heard.csv")` reads it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import tflgpu


def main() -> None:
    """Write the table to the standard output; recordings that cannot be read are warned of."""
    parser = argparse.ArgumentParser(description="A table of what is heard in recordings.")
    parser.add_argument("folder", type=Path, help="with .wav files, in folders of their own too")
    parser.add_argument("--model", required=True, help="a .tflite file that takes sounds")
    parser.add_argument("--labels", help="names of the classes, one a line")
    parser.add_argument("--rate", type=int, help="samples a second that the model takes")
    parser.add_argument("--threshold", type=float, default=0.5, help="the least score of a row")
    parser.add_argument("--top", type=int, default=3, help="the most rows of a window")
    given = parser.parse_args()
    options = {"labels": given.labels, "rate": given.rate, "threshold": given.threshold}
    table = csv.writer(sys.stdout)
    table.writerow(["file", "start", "end", "name", "score"])
    with tflgpu.Task(given.model, kind="classify", top=given.top, **options) as task:
        for path in sorted(given.folder.rglob("*.wav")):
            try:
                windows = [(at or 0.0, answer) for at, answer in task.each(path)]
            except tflgpu.InputError as error:
                print(f"warning: {error}", file=sys.stderr)
                continue
            length = windows[1][0] if len(windows) > 1 else 0.0
            for at, answer in windows:
                for label in answer.asdict()["labels"]:
                    times = f"{at:.2f}", f"{at + length:.2f}" if length else ""
                    table.writerow([path, *times, label["name"], label["score"]])


if __name__ == "__main__":
    main()
