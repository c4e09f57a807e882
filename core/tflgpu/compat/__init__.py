"""tflgpu.compat"""
