"""Signed certificates of a bundle's guarantees, for ``vouch-build certify`` and ``verify``.

==============  =================================================================================
`content`       bundle → statements of its certificate: population, guarantees, missing guarantees,
                and feedback on the bundle since its calibration
`verification`  writes, signs and reads certificate.json and its page; compares it with its bundle
==============  =================================================================================

The package needs no torch, no network and no vectors of the gallery.
"""
