"""tflgpu.kernel"""
