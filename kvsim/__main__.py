"""``python -m kvsim`` and the ``kvsim`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its libraries say how to get them."""
    try:
        from kvsim.cli import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        print(f"the kvsim command needs {missing}: pip install 'kvsim[cli]'", file=sys.stderr)
        sys.exit(2)
    try:
        app()
    except MemoryError as error:
        said = f" ({error})" if str(error) else ""
        print(f"there is not enough memory{said}: ask for fewer cells or operations", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
