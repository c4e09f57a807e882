"""From a graph to what a device loads: one function, `tflgpu.compiler.compile.compile`."""
