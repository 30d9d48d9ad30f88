"""The paths of the service.

::

    searching     what is said of an uploaded image
    items         the items of a gallery, and its sample queries
    galleries     galleries, and what their probabilities rest on
    feedback      what users say of matches
    bundles       which bundle of a gallery is served
    operations    whether the service lives, and answers
    dependencies  what routes work on
"""

from service.routes import bundles, feedback, galleries, items, operations, searching

ROUTERS = tuple(
    room.router for room in (galleries, searching, items, feedback, bundles, operations)
)

__all__ = ["ROUTERS"]
