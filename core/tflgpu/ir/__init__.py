"""tflgpu.ir"""
