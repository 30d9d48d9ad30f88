"""Signed certificates of a bundle's guarantees, for ``vouch-build certify`` and ``verify``.

==============  =================================================================================
`content`       bundle → statements of its certificate; both commands compute them
`promised`      guarantees for each source of queries, and a list of missing guarantees
`population`    description of the calibration queries
`since`         feedback on the bundle since its calibration
`files`         writes, signs and reads certificate.json; writes its HTML page
`verification`  compares a certificate with its bundle, lists all differences
==============  =================================================================================

The package needs no torch, no network and no vectors of the gallery.
"""
