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
from service.routes.searching import SearchForm

ROUTERS = tuple(
    room.router for room in (searching, galleries, items, changes, feedback, bundles, operations)
)
"""The busiest first: a path is looked for in one after the other."""

FORMS = (SearchForm,)
"""What paths read with `service.forms.form_of`."""

__all__ = ["FORMS", "ROUTERS"]
