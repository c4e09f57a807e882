"""Bases and tools that help a backend; none is needed to be one."""
