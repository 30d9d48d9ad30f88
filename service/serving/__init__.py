"""The bundles that are served, and the engines that answer with them.

::

    registry          galleries by name: leases, hot swap, compaction
    engine            one gallery at work
    queries           the parameters and results of an engine
    resources         the parts that engines share
    writer            live writes
    following         what a replica may answer with: `CURRENT`, followed
    current_bundle    what an activation did, and having `CURRENT` say so
    health            canaries
    watch             drift, errors and shares over time, kept across restarts
    drift             the drift test of a served stream
    audit             the random choice of answers that ask for feedback
    absent_share      the share of served queries without a match in the gallery
    metrics           gauges of a gallery
"""
