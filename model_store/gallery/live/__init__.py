"""A gallery that changes while it is served.

::

    log         what has changed, append-only, in SQLite
    rows        what it keeps of a change, with checksums
    high_water  how far it has come, beside it
    gallery     base and log, written to
    snapshot    base and log at one version, searched
    allowed     the rows that such a search may find
    fields      indexes of the fields of added items
    sqlite      connections with the settings of the log
"""
