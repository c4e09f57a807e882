"""Checks at the boundary to a backend's device, recordings and buffers, each made once."""
