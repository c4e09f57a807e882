"""Checks at the boundary: what a backend's device, recordings and buffers do, each asked once."""
