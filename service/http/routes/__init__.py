"""The paths of the service.

::

    search        search with an image, assess an image, embed an image
    texts         search with a text
    vectors       search with a vector, decide on neighbours from another store
    items         the items of a gallery, and its sample queries
    maps          the items of a gallery in two dimensions
    curation      near duplicates and possible label errors
    changes       change the items of a gallery
    galleries     galleries and their calibration reports
    calibrating   start a calibration, and return its state
    created       create, describe, rename and drop galleries
    usage         the scope, quotas and usage of a caller
    feedback      decisions on queries
    review        queries kept for review
    unknown       groups of queries without a match
    bundles       the bundles of a gallery; activate one, roll back
    shadow        compare another bundle with the served bundle on live queries
    operations    liveness, readiness and metrics
    dependencies  the application's state, and the gallery in the path
"""

from service.http.routes import (
    bundles,
    calibrating,
    changes,
    created,
    curation,
    feedback,
    galleries,
    items,
    maps,
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
        maps,
        curation,
        texts,
        vectors,
        changes,
        feedback,
        review,
        unknown,
        bundles,
        shadow,
        calibrating,
        created,
        usage,
        operations,
    )
)
"""All routers. The most used routers are first, because FastAPI searches them in this order."""

__all__ = ["ROUTERS"]
