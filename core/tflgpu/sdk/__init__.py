"""The names that plugins import: one module for each part of the work.

    plugin      hooks, and what they answer; imports no kernels
    ops         an operator: shapes, NumPy reference, samples, facets
    kernels     kernel rules
    passes      graph transformations
    printers    languages that kernels are printed in
    backend     devices: the contract, and the bases that help to implement it

The first number of `VERSION` grows when a name goes or changes its meaning, the second when a name
comes.
"""

from tflgpu.plugins.sources import SDK_VERSION as VERSION

__all__ = ["VERSION"]
