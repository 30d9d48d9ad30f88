"""What a model is on disk.

::

    manifest      what a bundle holds, with digests
    directory     bundles side by side; `CURRENT` and `PREVIOUS`
    publish       staged files → a bundle
    bundle        a bundle, opened
    changes       where the log of a live gallery lies
    compaction    bundle and log → a new bundle
    intact        whether the files are still those that were opened
    retention     which bundles are kept, and which are in use
    secret        what services on one directory sign with
    backup        bundle and log → one archive, and back
"""
