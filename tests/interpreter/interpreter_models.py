"""Small models that the interpreter's tests run here and in LiteRT."""

from __future__ import annotations

import numpy as np
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_model, tensor_of

C = np.array([1.0, -2.0, 3.0], np.float32)


def chain() -> bytes:
    """``y = (x + c) * c`` with a free batch size, an intermediate tensor and a signature."""
    return small_model(
        {
            "x": tensor_of((1, 3), shape_signature=(-1, 3)),
            "c": tensor_of((3,), data=C),
            "middle": tensor_of((1, 3), shape_signature=(-1, 3)),
            "y": tensor_of((1, 3), shape_signature=(-1, 3)),
        },
        "middle = ADD(x, c)",
        "y = MUL(middle, c)",
        signatures=(SignatureInfo("serve", 0, {"image": 0}, {"scores": 3}),),
    )


def static() -> bytes:
    """RELU of a fixed shape; no signature."""
    return small_model({"x": (1, 3), "y": (1, 3)}, "y = RELU(x)")


def two_subgraphs() -> bytes:
    """Main: two inputs, two outputs (sum and difference). Subgraph 1: a product.

    Names within each signature are not in alphabetical order, nor in the tensors' order.
    """
    product = SubgraphSpec(
        [TensorSpec("p", (2, 2)), TensorSpec("q", (2, 2)), TensorSpec("r", (2, 2))],
        [OperatorSpec("MUL", {}, (0, 1), (2,))],
        (0, 1),
        (2,),
        name="product",
    )
    return small_model(
        dict.fromkeys(("a", "b", "sum", "difference"), (2, 2)),
        "sum = ADD(a, b)",
        "difference = SUB(a, b)",
        inputs="b a",
        outputs="difference sum",
        signatures=(
            SignatureInfo("main", 0, {"v": 1, "u": 0}, {"minus": 3, "and": 2}),
            SignatureInfo("alone", 1, {"y": 0, "x": 1}, {"z": 2}),
        ),
        subgraphs=(product,),
    )


def scalar() -> bytes:
    """ABS of a tensor without dimensions."""
    return small_model({"x": (), "y": ()}, "y = ABS(x)")


def types() -> bytes:
    """Tensors of every kind of quantization, and of types that NumPy lacks."""
    tensors = [
        TensorSpec("x", (2,)),
        TensorSpec("y", (2,)),
        TensorSpec("u8", (1, 4), DType.U8, quantization=Quantization((0.1,), (128,))),
        TensorSpec(
            "per_axis",
            (3, 2),
            DType.I8,
            np.arange(6, dtype=np.int8).reshape(3, 2),
            Quantization((0.5, 0.25, 0.125), (0, 0, 0), 0),
        ),
        TensorSpec("i4", (3,), DType.I4, np.array([-8, 7, 1], np.int8)),
        TensorSpec("bf16", (2,), DType.BF16, np.array([0x3F80, 0], np.uint16)),
        TensorSpec("words", (2,), DType.STRING, np.array([b"one", b""], np.object_)),
        TensorSpec("handle", (), DType.RESOURCE),
        TensorSpec("", (5,), DType.I64),
    ]
    return write_model(ModelSpec(tensors, [OperatorSpec("RELU", {}, (0,), (1,))], (0,), (1,)))


def mismatch() -> bytes:
    """An ADD of shapes that do not broadcast: a file that no runtime can allocate."""
    return small_model({"x": (1, 3), "w": (1, 4), "y": (1, 3)}, "y = ADD(x, w)")


def custom() -> bytes:
    """A custom operator that nobody defines, after one that everybody does."""
    return small_model({"x": (1, 3), "h": (1, 3), "y": (1, 3)}, "h = RELU(x)", "y = Mystery(h)")


def counter() -> bytes:
    """A custom operator with a state tensor: ``y = total += x`` (see `Accumulate`)."""
    return small_model(
        {"x": (2,), "total": tensor_of((2,), is_variable=True), "y": (2,)},
        "y = Accumulate(x, total)",
    )


ALL = {
    "chain": chain,
    "static": static,
    "two_subgraphs": two_subgraphs,
    "scalar": scalar,
    "types": types,
    "custom": custom,
}
