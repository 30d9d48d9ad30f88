"""``python unprivileged.py COMMAND …``: a command that the permissions of files hold for.

They do not hold for root: Linux lets it write where nobody may. A command that is started here has
lost that privilege for good (CAP_DAC_OVERRIDE leaves the bounding set, and is gone with the next
exec), so that tests may take permissions away whoever runs them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1


def unprivileged(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` in this way."""
    return [sys.executable, __file__, *command]


def main() -> None:
    """Let go of the privilege, and become the command."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "CAP_DAC_OVERRIDE cannot be dropped")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
