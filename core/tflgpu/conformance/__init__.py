"""tflgpu.conformance"""
