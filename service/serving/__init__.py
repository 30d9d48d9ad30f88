"""Which bundle answers, and how.

::

    registry          galleries by name: leases, hot swap, compaction
    engine            one gallery at work
    queries           what is asked of an engine, and its results
    resources         what engines share
    writer            live writes
    following         what a replica may answer with: `CURRENT`, followed
    current_bundle    what an activation did, and having `CURRENT` say so
    health            canaries
    watch             drift, errors and shares over time, kept across restarts
    drift             the drift test of a served stream
    audit             which answers ask for feedback
    absent_share      how many of the served queries have nothing to be found
    metrics           gauges of a gallery
"""
