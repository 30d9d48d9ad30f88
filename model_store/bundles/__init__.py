"""Bundles: models on disk.

::

    manifest      description of a bundle, with digests
    directory     a directory of bundles; `CURRENT` and `PREVIOUS`
    shadow        `SHADOW`: a bundle that is tested beside the current one
    operator      `OPERATOR`: the adopted share of absent queries, acknowledged drift
    publish       staged files → a bundle
    bundle        an opened bundle
    signatures    signature of a bundle's publisher
    item_features  features of a sample of items
    empty         a new bundle with the encoder of another
    galleries     a directory of galleries that can be created, renamed and dropped
    changes       location of a live gallery's log
    compaction    bundle and log → a new bundle
    intact        check that the files of an open bundle are unchanged
    retention     removal of old bundles, and locks of bundles in use
    secret        signing key of the services on one directory
    backup        bundle and log → one archive, and back
    upgrade       a bundle of an earlier release → one of this release
"""
