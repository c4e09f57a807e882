"""The kernel language: GPU kernels as typed trees, built, checked, interpreted and printed."""
