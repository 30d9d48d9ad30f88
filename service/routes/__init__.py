"""The paths of the service.

::

    searching     what is said of an uploaded image
    items         the items of a gallery, and its sample queries
    galleries     galleries, and what their probabilities rest on
    feedback      what users say of matches
    operations    whether the service lives, and answers
    dependencies  what routes work on
"""

from service.routes import feedback, galleries, items, operations, searching

ROUTERS = tuple(room.router for room in (galleries, searching, items, feedback, operations))

__all__ = ["ROUTERS"]
