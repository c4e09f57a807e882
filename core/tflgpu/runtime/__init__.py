"""tflgpu.runtime"""
