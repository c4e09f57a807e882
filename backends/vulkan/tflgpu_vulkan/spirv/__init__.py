"""SPIR-V modules from kernel trees, in pure Python."""
