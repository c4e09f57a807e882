"""The custom operator Softsign for tflgpu."""
