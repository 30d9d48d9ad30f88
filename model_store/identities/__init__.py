"""Grouping of queries without a match into probable new identities.

Labels that the encoder was not trained on show how similar two images of one identity are. Each
label is evaluated with a fit to other labels, because a new identity is not in the fit.

::

    pairs     evidence that two images show the same identity
    grouping  the grouping of queries, fitted to a gallery
"""

from model_store.identities.grouping import PRECISION, UNKNOWN, Group, Grouping, group_id
from model_store.identities.pairs import Labelled, Points
