"""What was compiled, loaded and run: sessions, and the CPU's side of them."""
