"""Grouping of queries without a match into probable new identities.

The similarity of two images of one identity is learned from the labels of the gallery. Each label
is evaluated with a fit to other labels, because new identities are other labels too.

::

    pairs     evidence that two images show the same identity
    linkage   average linkage of log-odds on a graph of neighbours
    grouping  the grouping: fitted to a gallery, it groups queries
"""

from model_store.identities.grouping import PRECISION, UNKNOWN, Group, Grouping, group_id
from model_store.identities.pairs import Labelled, Points

__all__ = ["PRECISION", "UNKNOWN", "Group", "Grouping", "Labelled", "Points", "group_id"]
