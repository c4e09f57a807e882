"""A small language model of two signatures that share a cache, as exports of them do."""

from __future__ import annotations

import numpy as np
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: Tokens that the cache has room for, sizes of it, and tokens that there are.
ROOM, WIDTH, VOCABULARY = 13, 5, 37


def _subgraph(
    count: int, seed: int, *, has_logits: bool, room: int, vocabulary: int
) -> SubgraphSpec:
    """``count`` tokens go to the cache at their positions; the logits are of the mean of all that
    is in the cache up to the last position, and of the last token."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((vocabulary, WIDTH)).astype(np.float32)
    weights = rng.standard_normal((vocabulary, WIDTH)).astype(np.float32)
    tensors = [
        TensorSpec("tokens", (1, count), DType.I32),
        TensorSpec("input_pos", (count,), DType.I32),
        TensorSpec("kv_cache_k_0", (1, room, WIDTH)),
        TensorSpec("table", table.shape, data=table),
        TensorSpec("embedded", (1, count, WIDTH)),
        TensorSpec("zero", (1,), DType.I32, np.array([0], np.int32)),
        TensorSpec("one", (1,), DType.I32, np.array([1], np.int32)),
        TensorSpec("first", (1,), DType.I32),
        TensorSpec("at", (3,), DType.I32),
        TensorSpec("kv_cache_k_0_output", (1, room, WIDTH)),
        TensorSpec(
            "places", (1, room, 1), DType.I32, np.arange(room, dtype=np.int32)[None, :, None]
        ),
        TensorSpec("is_filled", (1, room, 1), DType.BOOL),
        TensorSpec("mask", (1, room, 1)),
        TensorSpec("masked", (1, room, WIDTH)),
        TensorSpec("axis", (1,), DType.I32, np.array([1], np.int32)),
        TensorSpec("sum", (1, WIDTH)),
        TensorSpec("weights", weights.shape, data=weights),
        TensorSpec("flat", (1, vocabulary)),
        TensorSpec("shape", (3,), DType.I32, np.array([1, 1, vocabulary], np.int32)),
        TensorSpec("logits", (1, 1, vocabulary)),
    ]
    operators = [
        OperatorSpec("GATHER", {"axis": 0}, (3, 0), (4,)),
        OperatorSpec("SLICE", {}, (1, 5, 6), (7,)),
        OperatorSpec("CONCATENATION", {"axis": 0}, (5, 7, 5), (8,)),
        OperatorSpec("DYNAMIC_UPDATE_SLICE", {}, (2, 4, 8), (9,)),
    ]
    outputs = (9,)
    if has_logits:
        operators += [
            OperatorSpec("LESS_EQUAL", {}, (10, 7), (11,)),
            OperatorSpec("CAST", {}, (11,), (12,)),
            OperatorSpec("MUL", {}, (9, 12), (13,)),
            OperatorSpec("SUM", {}, (13, 14), (15,)),
            OperatorSpec("FULLY_CONNECTED", {}, (15, 16, -1), (17,)),
            OperatorSpec("RESHAPE", {}, (17, 18), (19,)),
        ]
        outputs = (19, 9)
    else:
        tensors = tensors[:10]
    return SubgraphSpec(tensors, operators, (0, 1, 2), outputs)


def language_model(
    chunk: int = 4, *, seed: int = 0, room: int = ROOM, vocabulary: int = VOCABULARY
) -> bytes:
    """``prefill_CHUNK`` takes so many tokens and has no logits; ``decode`` takes one."""
    prefill = _subgraph(chunk, seed, has_logits=False, room=room, vocabulary=vocabulary)
    decode = _subgraph(1, seed, has_logits=True, room=room, vocabulary=vocabulary)
    inputs = {"tokens": 0, "input_pos": 1, "kv_cache_k_0": 2}
    return write_model(
        ModelSpec(
            prefill.tensors,
            prefill.operators,
            prefill.inputs,
            prefill.outputs,
            subgraphs=(decode,),
            signatures=(
                SignatureInfo(f"prefill_{chunk}", 0, inputs, {"kv_cache_k_0": 9}),
                SignatureInfo("decode", 1, inputs, {"kv_cache_k_0": 9, "logits": 19}),
            ),
        )
    )
