"""What each op means, an op family a file."""
