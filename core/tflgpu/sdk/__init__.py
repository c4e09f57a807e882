"""What authors of plugins import, and nothing else: one module for each part of the work.

    plugin      hooks, and what they answer; imports no kernels
    ops         an operator: shapes, NumPy reference, samples, facets
    kernels     kernel rules
    passes      graph transformations
    printers    languages that kernels are printed in
    backend     devices: the contract, and the bases that help to implement it

A plugin states beside its hooks for which versions it was written:

    TFLGPU_SDK = ">=1.0,<2"

Where `VERSION` is outside of that range the plugin is not used, and `tflgpu devices` says so. The
first number grows when a name goes or changes its meaning, the second when a name comes. A name that
is to go stays for one more first number and gives a `DeprecationWarning` that says what to use.
"""

from __future__ import annotations

from tflgpu.plugin_sources import SDK_VERSION as VERSION

__all__ = ["VERSION"]
