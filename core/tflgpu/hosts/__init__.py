"""Other interpreters that tflgpu runs inside of: TensorFlow Lite's, that is LiteRT.

choice of nodes (`subsets`) <- the host's graph (`reading`) <- C structs (`cdef`, `params`)
a kernel for each subset (`kernel`), behind C functions that Python answers (`callbacks`)
which host it is, and whether its structs are those known here (`runtimes`, `layout`)
"""
