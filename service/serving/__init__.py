"""The bundles that are served, and the engines that answer with them.

::

    registry          galleries by name: leases, hot swap, compaction, canaries
    builder           runs `vouch-build`; the first bundle of a service without galleries
    created           galleries that are created, renamed and dropped at run time
    served            which bundle a replica may answer from, following `CURRENT`; opens bundles;
                      the open engines, and the requests that use them
    lease             one request's fixed view of a gallery, and its operations
    engine            one gallery at work: decodes, encodes, caches and computes
    queries           the parameters of a search, and the results of an engine
    writer            live writes
    calibration_runs  calibrations that clients start, and refits of stale calibrations
    reviewing         queries kept for review, the random draw, embeddings for later decisions
    unknown           groups of queries without a match, and items that were queries
    curation          near duplicates and possible label errors, one part of a gallery at a time;
                      the planes of maps
    watch             statistics of drift, errors and shares, kept across restarts
    shadow            a shadow bundle: answers a share of the queries for comparison
    shadows           the shadow bundles of all galleries: started, restored, ended
    metrics           gauges of a gallery
"""
