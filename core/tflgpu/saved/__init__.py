"""Compiled models as files."""
