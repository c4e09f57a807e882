"""Graphs that are made by chance, the same at any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Value

from tests.passes.harness import Maker

WIDTH, I32 = 6, DType.I32
UNARY = ("EXP", "NEG", "LOG", "SQRT", "RSQRT", "ABS", "TANH", "RELU", "LOGISTIC")
BINARY = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM")
REDUCE = ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")


class Chance(Maker):
    """Makes the same operators at any size."""

    def __init__(self, seed: int, size: int) -> None:
        super().__init__(seed)
        self.choice = np.random.default_rng(seed)
        self.size = size

    def pick(self, items: Any) -> Any:
        return items[int(self.choice.integers(len(items)))]

    def unary(self, x: Value) -> Value:
        return self.op(self.pick(UNARY), x)

    def scaled(self, x: Value) -> Value:
        return self.op(self.pick(BINARY), x, self.random(x.shape[-1]) if x.shape[-1:] == (WIDTH,)
                       else self.const(0.7))  # fmt: skip

    def binary(self, x: Value) -> Value:
        return self.op(self.pick(BINARY), x, self.op(self.pick(UNARY), x))

    def turned(self, x: Value) -> Value:
        return self.op("TRANSPOSE", x, self.ints(*self.choice.permutation(len(x.shape))))

    def softmax(self, x: Value) -> Value:
        return self.op("SOFTMAX", x, beta=0.5) if len(x.shape) > 1 else x

    def reduced(self, x: Value) -> Value:
        axes = {int(self.choice.integers(len(x.shape))) for _ in range(2)}
        return self.op(self.pick(REDUCE), x, self.ints(*axes), keep_dims=True)

    def rescaled(self, x: Value) -> Value:
        """Less what is the same along an axis, as norms have it."""
        axis = int(self.choice.integers(len(x.shape)))
        return self.op(self.pick(BINARY), x,
                       self.op(self.pick(REDUCE), x, self.ints(axis), keep_dims=True))  # fmt: skip

    def so_far(self, x: Value) -> Value:
        axis = int(self.choice.integers(len(x.shape)))
        return self.op("CUMSUM", x, self.const(axis, I32),
                       reverse=bool(self.choice.integers(2)),
                       exclusive=bool(self.choice.integers(2)))  # fmt: skip

    def product(self, x: Value) -> Value:
        if len(x.shape) < 2:
            return x
        left, right = self.pick(((False, True), (True, False)))
        return self.op("BATCH_MATMUL", x, self.op(self.pick(UNARY), x), adj_x=left, adj_y=right)

    def filtered(self, x: Value) -> Value:
        if x.shape[-1] != WIDTH:
            return x
        return self.op("FULLY_CONNECTED", x, self.random(WIDTH, WIDTH), None, keep_num_dims=True)

    def wider(self, x: Value) -> Value:
        axis = int(self.choice.integers(len(x.shape) + 1))
        return self.op("EXPAND_DIMS", x, self.const(axis, I32)) if len(x.shape) < 4 else x

    def beside(self, x: Value) -> Value:
        axis = int(self.choice.integers(len(x.shape)))
        return self.op("CONCATENATION", x, self.op("NEG", x), axis=axis)

    def after(self, x: Value) -> Value:
        """Something of its own before, along an axis."""
        axis = int(self.choice.integers(len(x.shape)))
        if x.shape[axis] > self.size:
            return x
        shape = [1 if i == axis else size for i, size in enumerate(x.shape)]
        if self.size in shape:
            return x
        return self.op("CONCATENATION", self.random(*shape), x, axis=axis)

    def rest(self, x: Value) -> Value:
        """All but the first along an axis."""
        axis = int(self.choice.integers(len(x.shape)))
        if x.shape[axis] < 2:
            return x
        begin = [int(i == axis) for i in range(len(x.shape))]
        return self.op("SLICE", x, self.ints(*begin), self.ints(*[-1] * len(begin)))

    def padded(self, x: Value) -> Value:
        axis = int(self.choice.integers(len(x.shape)))
        pads = [self.choice.integers(3, size=2) if i == axis else [0, 0]
                for i in range(len(x.shape))]  # fmt: skip
        return self.op("PAD", x, self.ints(*pads))

    def first(self, x: Value) -> Value:
        """The first two along an axis."""
        axis = int(self.choice.integers(len(x.shape)))
        if x.shape[axis] < 2:
            return x
        sizes = [2 if i == axis else -1 for i in range(len(x.shape))]
        return self.op("SLICE", x, self.ints(*[0] * len(sizes)), self.ints(*sizes))

    def chosen(self, x: Value) -> Value:
        axis = int(self.choice.integers(len(x.shape)))
        return self.op("GATHER", x, self.ints(1, 0, 1), axis=axis) if x.shape[axis] > 1 else x


STEPS: tuple[Callable[[Any, Value], Value], ...] = (
    Chance.unary, Chance.scaled, Chance.binary, Chance.turned, Chance.softmax, Chance.reduced,
    Chance.rescaled, Chance.so_far, Chance.product, Chance.filtered, Chance.wider, Chance.beside,
    Chance.first, Chance.chosen, Chance.after, Chance.rest, Chance.padded,
)  # fmt: skip


def made(seed: int, size: int) -> Graph:
    g = Chance(seed, size)
    # Behind the size nothing is 0 any more, and not always a number.
    x = g.op(g.pick(("EXP", "LOGISTIC", "RSQRT", "LOG")), g.input(1, size, WIDTH))
    for _ in range(6):
        x = g.pick(STEPS)(g, x)
    return g.done(x)
