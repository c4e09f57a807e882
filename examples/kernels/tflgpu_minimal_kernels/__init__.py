"""The smallest tflgpu backend that runs kernels."""
