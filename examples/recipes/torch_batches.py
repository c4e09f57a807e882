"""Run a model over a torch data set, many items in each run.

    python examples/recipes/torch_batches.py --items 50 --batch 8

`tflgpu.Model(..., batch=8)` computes eight items in one run, also of a model that was made for one.
Tensors of torch share their memory with NumPy, so nothing is copied on the way. The data set here
is random, for the demo's digits; items of your own have the shape of your model's input.
"""

from __future__ import annotations

import argparse

import tflgpu
import torch
from tflgpu.demo import load_digits
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Print how many items were seen, and how often each class was the likeliest."""
    parser = argparse.ArgumentParser(description="Run a model over a torch data set.")
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    items = TensorDataset(torch.rand(given.items, 8, 8, 1))
    found: list[int] = []
    with tflgpu.Model(load_digits().model, batch=given.batch) as model:
        for (batch,) in DataLoader(items, given.batch):
            (scores,) = model(batch.numpy())
            found += torch.from_numpy(scores).argmax(-1).tolist()
    print(f"{len(found)} items; classes {torch.tensor(found).bincount(minlength=10).tolist()}")


if __name__ == "__main__":
    main()
