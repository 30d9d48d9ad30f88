"""Have the permissions of files hold for a process, so that tests may take them away.

They do not hold for root: Linux lets it read and write where nobody may.
"""

from __future__ import annotations

import ctypes
import os

_PR_CAPBSET_DROP = 24
_GIVEN_UP = {1: "CAP_DAC_OVERRIDE", 2: "CAP_DAC_READ_SEARCH"}
_VERSION_3 = 0x20080522
"""Of the structures that the kernel takes: two sets of 32 capabilities each."""


def give_up_privilege() -> None:
    """Give up what lets root read and write anywhere, here and in the processes that it starts.

    The two leave its capabilities, and the bounding set of the programs that it becomes.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and once more
    failed = any(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) for number in _GIVEN_UP)
    failed = failed or libc.capget(header, sets)
    for place in range(3):
        sets[place] &= ~sum(1 << number for number in _GIVEN_UP)
    if failed or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), f"{', '.join(_GIVEN_UP.values())} cannot be dropped")
