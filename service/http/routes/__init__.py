"""The paths of the service.

::

    search        search with an image, assess it, embed it
    texts         search in words
    vectors       search with a vector, decide on neighbours of another store
    items         the items of a gallery, and its sample queries
    changes       changing a gallery while it is served
    galleries     galleries and their calibration reports
    created       galleries created, described, renamed and dropped
    usage         what a caller may do, and has done
    feedback      users' feedback on matches
    review        queries kept for review
    unknown       those of them that matched nothing, in groups
    bundles       the bundles of a gallery, and the one that is served
    shadow        a bundle that is tried in the shadow of the one that is served
    operations    liveness, readiness and metrics
    dependencies  the application's state, and the gallery in the path
"""

from service.http.routes import (
    bundles,
    changes,
    created,
    feedback,
    galleries,
    items,
    operations,
    review,
    search,
    shadow,
    texts,
    unknown,
    usage,
    vectors,
)

ROUTERS = tuple(
    room.router
    for room in (
        search,
        galleries,
        items,
        texts,
        vectors,
        changes,
        feedback,
        review,
        unknown,
        bundles,
        shadow,
        created,
        usage,
        operations,
    )
)
"""The busiest first, because routers are searched in this order."""

__all__ = ["ROUTERS"]
