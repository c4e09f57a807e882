"""Small models that several tests and the fuzzer use."""

from __future__ import annotations

import numpy as np
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec

from tests.small_models import small_spec, tensor_of


def conv() -> ModelSpec:
    """CONV_2D with constants, an activation, a custom operator's neighbour, and a signature."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((5, 3, 3, 2)).astype(np.float32)
    bias = rng.standard_normal(5).astype(np.float32)
    return small_spec(
        {
            "x": (1, 7, 5, 2),
            "w": tensor_of((5, 3, 3, 2), data=weights),
            "b": tensor_of((5,), data=bias),
            "y": (1, 4, 3, 5),
        },
        (
            "y = CONV_2D(x, w, b)",
            {"padding": 0, "stride_h": 2, "stride_w": 2, "fused_activation_function": 1},
        ),
        signatures=(SignatureInfo("serve", 0, {"image": 0}, {"features": 3}),),
        metadata={"note": b"made by a test"},
        description="one convolution",
    )


def quantized() -> ModelSpec:
    """A per-channel FULLY_CONNECTED in int8, with an absent bias, then a custom operator."""
    rng = np.random.default_rng(8)
    weights = rng.integers(-127, 128, (3, 8)).astype(np.int8)
    scale = (0.5, 0.25, 0.125)
    return small_spec(
        {
            "x": tensor_of((2, 8), DType.I8, quantization=Quantization((0.1,), (-3,))),
            "w": tensor_of(
                (3, 8), DType.I8, weights, Quantization(scale, (0, 0, 0), 0, (-1.0,), (1.0,))
            ),
            "y": tensor_of((2, 3), DType.I8, quantization=Quantization((2.0,), (5,))),
            "z": tensor_of((2, 3), DType.I8, shape_signature=(-1, 3)),
        },
        ("y = FULLY_CONNECTED(x, w, -)", {"keep_num_dims": True}, {"version": 4}),
        ("z = Mystery(y)", {}, {"custom_options": b"\x01\x02\x03"}),
    )


def loop() -> ModelSpec:
    """WHILE with a condition and a body: counts an int32 up to 10 in steps of 3."""
    scalar = [TensorSpec("i", (1,), DType.I32)]
    cond = SubgraphSpec(
        tensors=[
            *scalar,
            TensorSpec("limit", (1,), DType.I32, [10]),
            TensorSpec("go", (1,), DType.BOOL),
        ],
        operators=[OperatorSpec("LESS", {}, (0, 1), (2,))],
        inputs=(0,),
        outputs=(2,),
        name="cond",
    )
    body = SubgraphSpec(
        tensors=[
            *scalar,
            TensorSpec("step", (1,), DType.I32, [3]),
            TensorSpec("next", (1,), DType.I32),
        ],
        operators=[OperatorSpec("ADD", {}, (0, 1), (2,))],
        inputs=(0,),
        outputs=(2,),
        name="body",
    )
    return ModelSpec(
        tensors=[*scalar, TensorSpec("end", (1,), DType.I32)],
        operators=[
            OperatorSpec("WHILE", {"cond_subgraph_index": 1, "body_subgraph_index": 2}, (0,), (1,))
        ],
        inputs=(0,),
        outputs=(1,),
        subgraphs=(cond, body),
    )


def sparse() -> ModelSpec:
    """DENSIFY of a 4x6 matrix in compressed rows of 2x2 blocks, then ADD."""
    pattern, values = sparse_constant()
    return small_spec(
        {
            "s": tensor_of((4, 6), data=values, sparsity=pattern),
            "d": (4, 6),
            "x": (4, 6),
            "y": (4, 6),
        },
        "d = DENSIFY(s)",
        "y = ADD(d, x)",
    )


def sparse_constant() -> tuple[Sparsity, np.ndarray]:
    """A layout of blocks at block coordinates (0, 1), (1, 0) and (1, 2), and values 1 to 12."""
    pattern = Sparsity(
        traversal_order=(0, 1, 2, 3),
        block_map=(0, 1),
        levels=(
            Level(2),
            Level(None, np.array([0, 1, 3], np.uint8), np.array([1, 0, 2], np.uint8)),
            Level(2),
            Level(2),
        ),
    )
    return pattern, np.arange(1, 13, dtype=np.float32)


def constants() -> ModelSpec:
    """A constant of each element type that can have one, and one without elements."""
    data: dict[DType, object] = {
        DType.STRING: np.array([b"a", b"", b"three"], np.object_),
        DType.I4: np.array([-8, 7, 3], np.int8),
        DType.BF16: np.array([0x3F80, 0, 0xFFFF], np.uint16),
    }
    types = [t for t in DType if t.has_numpy] + list(data)
    tensors = [
        TensorSpec(t.value, (3,), t, data.get(t, [1, 0, 1])) for t in types if t.tflite is not None
    ]
    tensors.append(TensorSpec("nothing", (0,), DType.I32, []))
    tensors += [TensorSpec("x", (3,)), TensorSpec("y", ())]
    x, y = len(tensors) - 2, len(tensors) - 1
    return ModelSpec(
        tensors,
        [OperatorSpec("RESHAPE", {}, (x, x - 1), (y,))],
        inputs=(x,),
        outputs=(y,),
    )


ALL = {
    "conv": conv,
    "quantized": quantized,
    "loop": loop,
    "sparse": sparse,
    "constants": constants,
}
