"""A gallery that changes while it is served.

::

    log         an append-only log of changes in SQLite; the number of the last change, in a file
                beside the log
    rows        the rows of the log, with checksums
    gallery     a base gallery with a log: accepts changes
    snapshot    the gallery after one change: answers searches
"""
