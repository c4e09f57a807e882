"""The `tflgpu` command, one file a subcommand."""
