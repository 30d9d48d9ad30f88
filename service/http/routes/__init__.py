"""The paths of the service. A module has its routes, and builds their answers.

::

    search        search with an image, a text or a vector; assess, embed, decide
    items         the items of a gallery, its sample queries, and changes
    curation      the map of a gallery, near duplicates and possible label errors
    galleries     galleries, their bundles and calibrations; create, rename, drop
    review        decisions on queries, and queries kept for review
    unknown       groups of queries without a match
    shadow        compare another bundle with the served bundle on live queries
    operations    usage, liveness, readiness and metrics
    dependencies  the application's state, and the gallery in the path
"""

from service.http.routes import (
    curation,
    galleries,
    items,
    operations,
    review,
    search,
    shadow,
    unknown,
)

ROUTERS = (
    search.router,
    galleries.router,
    items.router,
    curation.router,
    items.changes_router,
    review.feedback_router,
    review.router,
    unknown.router,
    galleries.bundles_router,
    shadow.router,
    operations.router,
)
"""All routers. The most used routers are first, because FastAPI searches them in this order."""

__all__ = ["ROUTERS"]
