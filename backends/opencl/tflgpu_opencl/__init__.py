"""The opencl backend of tflgpu."""
