"""One run of a model, by tflgpu's interpreter or LiteRT's, and random inputs for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tflgpu.errors import InputError
from tflgpu.ir.dtypes import Array


class Runner(Protocol):
    """The methods that tflgpu's interpreter and LiteRT's share."""

    def get_input_details(self) -> Sequence[Mapping[str, Any]]:
        """Name, index, shape and type of each input."""

    def get_output_details(self) -> Sequence[Mapping[str, Any]]:
        """Name, index, shape and type of each output."""

    def set_tensor(self, tensor_index: int, value: Array) -> None:
        """Copy an array into an input."""

    def get_tensor(self, tensor_index: int) -> Array:
        """A copy of a tensor."""

    def invoke(self) -> None:
        """Run the model once."""


def run_once(runner: Runner, inputs: Mapping[int, Array]) -> list[Array]:
    """Inputs by tensor index in, outputs in the model's order out."""
    for index, array in inputs.items():
        runner.set_tensor(index, array)
    runner.invoke()
    return [runner.get_tensor(int(d["index"])) for d in runner.get_output_details()]


def random_input(detail: Mapping[str, Any], rng: np.random.Generator) -> Array:
    """Random contents: floats in [-1, 1), bytes of all values, other whole numbers 0 or 1."""
    shape = tuple(int(s) for s in detail["shape"])
    dtype = np.dtype(detail["dtype"])
    if dtype.kind == "f":
        return rng.uniform(-1, 1, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    if dtype in (np.dtype(np.int8), np.dtype(np.uint8)):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind in "iub":
        # Such inputs are mostly indices; what is in range everywhere cannot be known.
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "S":
        raise InputError(f"input {detail['name']} takes texts; give a .npy file of them by -i")
    raise InputError(f"input {detail['name']} is {dtype}, for which there are no random values")


def random_inputs(runner: Runner, rng: np.random.Generator) -> dict[int, Array]:
    """Random contents of every input, by tensor index.

    Raises:
        InputError: an input takes what there are no random values for.
    """
    return {int(d["index"]): random_input(d, rng) for d in runner.get_input_details()}
