"""Bytes kept on disk from one process to the next."""
