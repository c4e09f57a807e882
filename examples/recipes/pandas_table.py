"""A table of the answers to a folder of photos.

    python examples/recipes/pandas_table.py photos --model mobilenet.tflite --labels labels.txt

It has a row for each photo and class; `answers.csv` is written, and a summary printed. The same
from the command line: `tflgpu run MODEL -i photos --json > answers.jsonl`, which
`pandas.read_json("answers.jsonl", lines=True)` reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import tflgpu

SUFFIXES = {".jpg", ".jpeg", ".png"}


def main() -> None:
    """Classify every photo of a folder, and count the likeliest classes."""
    parser = argparse.ArgumentParser(description="A table of the answers to a folder of photos.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--labels", help="names of the classes, one a line")
    given = parser.parse_args()
    rows = []
    with tflgpu.Task(given.model, kind="classify", labels=given.labels) as task:
        for path in sorted(p for p in given.folder.rglob("*") if p.suffix.lower() in SUFFIXES):
            labels = task(path).asdict()["labels"]
            rows += [{"photo": path.name, "rank": n, **label} for n, label in enumerate(labels, 1)]
    table = pd.DataFrame(rows, columns=["photo", "rank", "index", "name", "score"])
    table.to_csv("answers.csv", index=False)
    print(table[table["rank"] == 1].groupby("name")["score"].agg(["count", "mean"]).to_string())


if __name__ == "__main__":
    main()
