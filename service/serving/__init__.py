"""The bundles that are served, and the engines that answer with them.

::

    registry          galleries by name: leases, hot swap, compaction
    created           galleries that are created, renamed and dropped at run time
    served            open engines, and the requests that use them
    opening           bundles opened: in place of others, or on demand
    lease             a gallery as one request has found it, and the questions that it answers
    engine            one gallery at work: decodes, encodes, caches and computes
    threads           the threads that search and decide, each in its caller's turn
    pace              work that is quick enough for the event loop
    queries           the parameters and results of questions
    resources         the parts that engines share
    writer            live writes
    following         what a replica may answer with: `CURRENT`, followed
    current_bundle    what an activation did, and writing it to `CURRENT`
    recalibration     calibrations that are stale, fitted again by another process
    health            canaries
    retained          embeddings of answered queries, for later decisions
    reviewing         queries kept for review
    enrolment         items that were queries
    unknown           those of them that matched nothing, in groups
    watch             drift, errors and shares over time, kept across restarts
    drift             the drift test of a served stream
    audit             the random choice of answers that ask for feedback
    absent_share      the share of served queries without a match in the gallery
    shadow            a bundle that is tried on a share of the queries, for comparison alone
    shadows           those of all galleries: started, followed over restarts, ended
    metrics           gauges of a gallery
"""
