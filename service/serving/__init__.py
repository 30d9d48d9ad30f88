"""The bundles that are served, and the engines that answer with them.

::

    registry          galleries by name: leases, hot swap, compaction, canaries
    builder           runs `vouch-build`; the first bundle of a service without galleries
    created           galleries that are created, renamed and dropped at run time
    served            open engines, and the requests that use them
    opening           opening bundles: replacements, or galleries on demand
    lease             one request's fixed view of a gallery, and its operations
    engine            one gallery at work: decodes, encodes, caches and computes
    threads           the threads that search and decide, shared fairly between callers; quick work
    queries           the parameters of a search, and the results of an engine
    resources         the parts that engines share
    writer            live writes
    following         which bundle a replica may answer from, following `CURRENT`
    current_bundle    the result of an activation, and writing `CURRENT`
    calibrating       runs `vouch-build calibrate` in a separate process
    calibration_runs  calibrations that clients start
    recalibration     refits stale calibrations
    reviewing         queries kept for review, and embeddings for later decisions
    enrolment         items that were queries
    unknown           groups of queries without a match
    curation          near duplicates and possible label errors, one part of a gallery at a time;
                      the planes of maps
    watch             statistics of drift, errors and shares, kept across restarts
    drift             the drift tests of served queries
    audit             the random draw of answers for review
    absent_share      the share of served queries without a match in the gallery
    shadow            a shadow bundle: answers a share of the queries for comparison
    shadows           the shadow bundles of all galleries: started, restored, ended
    metrics           gauges of a gallery
"""
