"""The `tflgpu` command, which is `python -m tflgpu` too."""

from __future__ import annotations

import sys
from importlib.metadata import version

#: What a shell makes of Ctrl-C, and the command itself once it runs.
_INTERRUPTED = 130


def main() -> None:
    """Entry point of the `tflgpu` script. The command's modules take a good part of a second to
    import: Ctrl-C in that time ends it as quietly as later on, and the version needs none of them.
    """
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"tflgpu {version('tflgpu')}\n")
        return
    try:
        from tflgpu.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
