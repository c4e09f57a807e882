"""`.tflite` files: `read.read_model` makes checked plain values of one, `write.write_model` a file.

Nothing here knows what an operator means; that is `tflgpu.ops`.
"""
