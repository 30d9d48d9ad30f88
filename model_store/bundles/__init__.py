"""Bundles: models on disk.

::

    manifest      the description of a bundle, with digests
    directory     bundles side by side; `CURRENT` and `PREVIOUS`
    publish       staged files → a bundle
    bundle        a bundle, opened
    changes       the place of a live gallery's log
    compaction    bundle and log → a new bundle
    secret        what services on one directory sign with
    backup        bundle and log → one archive, and back
"""
