"""tflgpu.kernels"""
