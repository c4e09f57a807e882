"""GPU delegate framework for TensorFlow Lite models."""
