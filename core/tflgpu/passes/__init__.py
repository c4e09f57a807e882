"""Graph transformations, one a file."""
