"""tflgpu.tflite"""
