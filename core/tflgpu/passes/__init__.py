"""tflgpu.passes"""
