"""tflgpu.ops"""
