"""Bundles: models on disk.

::

    manifest      the description of a bundle, with digests
    directory     bundles side by side; `CURRENT` and `PREVIOUS`
    shadow        `SHADOW`: a bundle that is tried beside the current one
    operator      `OPERATOR`: the adopted share of absent queries, acknowledged drift
    publish       staged files → a bundle
    bundle        a bundle, opened
    signatures    who published a bundle
    item_features  features of a sample of a gallery's items
    empty         a bundle with the encoder of another
    galleries     galleries that are created, renamed and dropped, in one directory
    changes       the place of a live gallery's log
    compaction    bundle and log → a new bundle
    intact        whether the files are still those that were opened
    retention     which bundles are kept, and which are in use
    secret        what services on one directory sign with
    backup        bundle and log → one archive, and back
    upgrade       a bundle of an earlier release → one of this release
"""
