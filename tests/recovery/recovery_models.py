"""Models with and without state for the tests of recovery and of runs in flight, and what they
give. `little_memory.py`, a script, imports them too: nothing here is of other folders."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

_RNG = np.random.default_rng(5)
UNITS, SIZE = 3, 5
#: Of the input gate, the forget gate, the cell and the output gate.
W = [_RNG.normal(size=(UNITS, SIZE)).astype(np.float32) for _ in range(4)]
R = [_RNG.normal(size=(UNITS, UNITS)).astype(np.float32) for _ in range(4)]
B = [_RNG.normal(size=UNITS).astype(np.float32) for _ in range(4)]
X = _RNG.normal(size=(1, 1, SIZE)).astype(np.float32)
INPUTS = [(X * scale).astype(np.float32) for scale in (1, 2, -1, 0.5)]


def keeps_state() -> bytes:
    """An LSTM, which the CPU runs, and a softmax of its result. The output is tensor 1."""
    tensors = [TensorSpec("x", X.shape), TensorSpec("y", (1, 1, UNITS)), TensorSpec("h", (1, 1,
    UNITS))]  # fmt: skip
    tensors += [TensorSpec(f"w{i}", w.shape, data=w) for i, w in enumerate(W)]  # 3 to 6
    tensors += [TensorSpec(f"r{i}", r.shape, data=r) for i, r in enumerate(R)]  # 7 to 10
    tensors += [TensorSpec(f"b{i}", b.shape, data=b) for i, b in enumerate(B)]  # 11 to 14
    tensors += [TensorSpec(n, (1, UNITS), is_variable=True) for n in ("output", "cell")]
    no = (-1,)
    operands = (0, *range(3, 11), *no * 3, *range(11, 15), *no * 2, 15, 16, *no * 4)
    operators = [
        OperatorSpec("UNIDIRECTIONAL_SEQUENCE_LSTM", {"fused_activation_function": 4}, operands, (2,
        )),
        OperatorSpec("SOFTMAX", {"beta": 1.0}, (2,), (1,)),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, operators, (0,), (1,)))


def state_results(*inputs: Any) -> list[Any]:
    """What `keeps_state` gives for inputs that follow each other."""
    h, c, results = np.zeros(UNITS), np.zeros(UNITS), []
    for x in inputs:
        gates = [
            w @ np.asarray(x).reshape(SIZE) + r @ h + b for w, r, b in zip(W, R, B, strict=True)
        ]
        i, f, o = (1 / (1 + np.exp(-gates[at])) for at in (0, 1, 3))
        c = f * c + i * np.tanh(gates[2])
        h = o * np.tanh(c)
        e = np.exp(h - h.max())
        results.append((e / e.sum()).reshape(1, 1, UNITS))
    return results


def large(rows: int = 300, outputs: tuple[int, ...] = (2,)) -> bytes:
    """Twice its input, of ``rows`` x 1,024 numbers: results that devices lend. The output is tensor
    2."""
    tensors = [
        TensorSpec("x", (rows, 1024)), TensorSpec("two", (), data=np.float32(2)),
        TensorSpec("y", (rows, 1024)),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, [OperatorSpec("MUL", {}, (0, 1), (2,))], (0,), outputs))


def step(interpreter: Any, x: Any) -> Any:
    """One run: its result."""
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter.get_tensor(1)
