"""The paths of the service.

::

    search     what is said of an uploaded image
    items         the items of a gallery, and its sample queries
    changes       changing a gallery while it is served
    galleries     galleries, and what their probabilities rest on
    feedback      what users say of matches
    bundles       which bundle of a gallery is served
    operations    whether the service lives, and answers
    dependencies  what routes work on
"""

from service.http.routes import bundles, changes, feedback, galleries, items, operations, search
from service.http.routes.search import SearchForm

ROUTERS = tuple(
    room.router for room in (search, galleries, items, changes, feedback, bundles, operations)
)
"""The busiest first: a path is looked for in one after the other."""

FORMS = (SearchForm,)
"""What paths read with `service.http.bodies.form_of`."""

__all__ = ["FORMS", "ROUTERS"]
