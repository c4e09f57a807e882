"""The cpu_ref backend of tflgpu."""
