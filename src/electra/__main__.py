"""The command `electra`, which is also `python -m electra`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports, too, has no traceback."""
    try:
        from electra.cli import main as run
    except KeyboardInterrupt:
        print("error: stopped.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
