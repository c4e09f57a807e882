"""What a backend implements, the bases that help it, and the checks of what it does."""
