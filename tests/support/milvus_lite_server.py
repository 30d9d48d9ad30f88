"""``milvus-lite`` as its own command starts it, but it remembers the rows that it has read.

For every hit of a search it takes a row apart anew, which is most of what a calibration costs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from milvus_lite.cmdline import main
from milvus_lite.storage.segment import Segment

_read = cache(Segment.row_to_dict)  # a segment never changes


def _remembered(segment: Segment, row: int) -> dict[str, Any]:
    return dict(_read(segment, row))


if __name__ == "__main__":
    Segment.row_to_dict = _remembered
    raise SystemExit(main())
