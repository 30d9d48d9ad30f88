"""Start ``vouch-serve``; see `service.start`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

CHECK_HEALTH = "--check-health"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `vouch-serve --help` lists the exit statuses."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == [CHECK_HEALTH]:  # Containers run this every few seconds; imports below are slow.
        from service.health_check import check_by_environment  # noqa: PLC0415

        check_by_environment()
        return
    from model_store.programs import (  # noqa: PLC0415
        asks_for_version,
        interruptible,
        version_line,
    )

    if asks_for_version(given):
        print(version_line("vouch-serve"))
        return
    if CHECK_HEALTH in given:
        from service.command_line import check_health  # noqa: PLC0415

        check_health([option for option in given if option != CHECK_HEALTH])
        return
    with interruptible():
        from service.command_line import read_command_line  # noqa: PLC0415

        settings = read_command_line(given)
        from service.start import start  # noqa: PLC0415

        start(settings)


if __name__ == "__main__":
    main()
