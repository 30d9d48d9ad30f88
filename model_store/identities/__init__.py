"""Names for the unknown: queries that matched nothing, grouped into probable new identities.

What two images of one identity look like to the encoder is learned from the labels of the gallery,
each judged by what was learned from other labels, since those to come are others as well.

::

    pairs     P(same identity) of two images, before anything else is known of them
    linkage   images joined by average linkage of log-odds, along a graph of neighbours
    grouping  the whole: fitted to a gallery, it turns queries into groups
"""

from model_store.identities.grouping import PRECISION, UNKNOWN, Group, Grouping, group_id
from model_store.identities.pairs import Labelled, Points

__all__ = ["PRECISION", "UNKNOWN", "Group", "Grouping", "Labelled", "Points", "group_id"]
