"""The planes of gallery maps. A plane, the two axes of a map, changes only with its gallery."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from model_store.gallery_map import Plane
from service.serving.lease import Lease

_MAX_KEPT = 64
"""Maximum number of cached planes, one for each gallery."""


class GalleryPlanes:
    """Computes the planes of gallery maps; a plane is cached until its gallery changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[tuple[str, int], Plane]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, lease: Lease) -> Plane:
        """Return the plane of a gallery's map; concurrent requests share one computation."""
        bundle = lease.bundle
        state = bundle.manifest.id, bundle.version
        async with self._turn:
            known = self._known.get(bundle.key)
            if known is None or known[0] != state:
                plane = await lease.engine.compute(lambda: Plane.of(bundle.retriever.gallery))
                known = self._known[bundle.key] = state, plane
            self._known.move_to_end(bundle.key)
            while len(self._known) > _MAX_KEPT:
                self._known.popitem(last=False)
            return known[1]
