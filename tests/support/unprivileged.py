"""Have the permissions of files hold for a process, so that tests may take them away.

They do not hold for root: Linux lets it write where nobody may.
"""

from __future__ import annotations

import ctypes
import os

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1
_VERSION_3 = 0x20080522
"""Of the structures that the kernel takes: two sets of 32 capabilities each."""


def give_up_privilege() -> None:
    """Give up what lets root write anywhere, for this process and for those that it starts.

    CAP_DAC_OVERRIDE leaves its capabilities, and the bounding set of the programs that it becomes.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and once more
    failed = libc.prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)
    failed = failed or libc.capget(header, sets)
    for place in range(3):
        sets[place] &= ~(1 << _CAP_DAC_OVERRIDE)
    if failed or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "CAP_DAC_OVERRIDE cannot be dropped")
