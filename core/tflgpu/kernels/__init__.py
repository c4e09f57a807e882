"""GPU kernels, an op family a file."""
