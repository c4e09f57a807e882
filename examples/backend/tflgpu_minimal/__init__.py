"""The smallest tflgpu backend."""
