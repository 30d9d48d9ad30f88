"""Start ``vouch-build``, the command line of the index builder; see `index_builder.commands`."""

from __future__ import annotations

import sys

from model_store.programs import asks_for_version, interruptible, version_line

PROGRAM = "vouch-build"


def main() -> None:
    """Entry point; `vouch-build --help` lists the exit statuses."""
    if asks_for_version(sys.argv[1:]):
        print(version_line(PROGRAM))
        return
    with interruptible():
        from index_builder.commands.app import run  # noqa: PLC0415 - slow

        run(PROGRAM)


if __name__ == "__main__":
    main()
