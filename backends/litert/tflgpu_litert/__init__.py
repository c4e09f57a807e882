"""LiteRT's CPU kernels as a tflgpu backend."""
