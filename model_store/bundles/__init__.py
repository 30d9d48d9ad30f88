"""Bundles: directories with encoder, gallery and calibration.

::

    manifest      description of a bundle, with digests
    directory     a directory of bundles, with the files `CURRENT`, `PREVIOUS`, `OPERATOR` and
                  `SHADOW`
    publish       writes a bundle with the encoder of another bundle, and publishes bundles
    bundle        an opened bundle
    signatures    signature of a bundle's publisher; keys and signatures of Ed25519
    kept_queries  the stored queries of a calibration, and features of a sample of items
    galleries     a directory of galleries that can be created, renamed and dropped
    changes       location of a live gallery's log
    compaction    merges a bundle and its log into a new bundle
    retention     removal of old bundles, and locks on open bundles
    history       summaries of bundles and of their calibrations
    backup        writes a bundle and its log to an archive, and restores an archive
    upgrade       upgrade of a bundle from an earlier release
"""
