"""The scale of a quantized bias, in a convolution or a product."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node, Value
from tflgpu.ir.quant import Quantization
from tflgpu.ops.facets import Filter


def same_steps(product: Quantization, given: Quantization | None) -> bool:
    """Whether a file gives a bias the scales that it has by the product, but for rounding. TFLite's
    kernels look at nothing else of what it gives."""
    if given is None or len(given.scale) != len(product.scale) or any(given.zero_point):
        return False
    return bool(np.allclose(given.scale, product.scale, rtol=1e-5, atol=0))


def product_of_scales(kind: Filter, node: Node, bias: Value) -> Quantization | None:
    """The quantization of a bias: TFLite's kernels add it to sums of products as it is."""
    x, weights = node.input(kind.source).quant, node.input(kind.weights).quant
    if x is None or weights is None or x.per_axis:
        return None
    scales = np.float32(x.scale[0]) * np.asarray(weights.scale, np.float32)
    if len(scales) not in (1, bias.elements):
        return None
    axis = max(0, len(bias.shape) - 1)
    return Quantization(tuple(float(s) for s in scales), (0,) * len(scales), axis)


def steps_of_bias(kind: Filter, node: Node, bias: Value) -> Quantization | None:
    """The scale of a bias: the file's, or the product of the other scales where the two differ by
    more than rounding; None where neither is known."""
    product = product_of_scales(kind, node, bias)
    return bias.quant if product is None or same_steps(product, bias.quant) else product
