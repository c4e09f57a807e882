"""`.tflite` files: `read.read_model` reads one into checked plain values, `write.write_model`
writes one.

Nothing here knows what an operator means; that is `tflgpu.ops`.
"""
