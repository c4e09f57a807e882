"""The conformance suite: what every backend must get right, shipped for authors of backends.

    pytest --pyargs tflgpu.conformance --tflgpu-backend opencl

Levels: 0 the device contract, 1 the kernel language, 2 every op's samples in every precision and
layout, 3 generated cases, 4 small graphs, 5 guard bands and the cache. A case that the device
refuses is counted and listed with its reason; a named backend that cannot be opened is a failure.
"""
