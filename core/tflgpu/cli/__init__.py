"""tflgpu.cli"""
