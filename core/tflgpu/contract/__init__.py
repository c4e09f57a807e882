"""What a backend implements: protocols and values."""
