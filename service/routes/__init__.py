"""The paths of the service.

::

    searching     what is said of an uploaded image
    items         the items of a gallery, and its sample queries
    changes       changing a gallery while it is served
    galleries     galleries, and what their probabilities rest on
    feedback      what users say of matches
    bundles       which bundle of a gallery is served
    operations    whether the service lives, and answers
    dependencies  what routes work on
"""

from service.routes import bundles, changes, feedback, galleries, items, operations, searching

ROUTERS = tuple(
    room.router for room in (galleries, searching, items, changes, feedback, bundles, operations)
)

__all__ = ["ROUTERS"]
