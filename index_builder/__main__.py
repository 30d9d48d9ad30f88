"""Start ``vouch-build``, the command line of the index builder; see `index_builder.commands`."""

from __future__ import annotations

import sys

from model_store.installation import version_line

PROGRAM = "vouch-build"


def main() -> None:
    """Entry point; the exit status is one of those that ``vouch-build --help`` lists.

    An error of the family is one line on standard error, and so is one of a disk that is full or
    read-only. The imports come late: ``--version`` needs none of them, and Ctrl+C may come early.
    """
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(version_line(PROGRAM))
        return
    try:
        from index_builder.commands.app import run  # noqa: PLC0415 - see above

        run(PROGRAM)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
