"""``vouch-build certify`` and ``verify``: what a bundle promises, signed, and checked again.

==============  =================================================================================
`commands`      both commands, as a terminal has them
`content`       bundle → everything that its certificate says; both commands compute it by this
`promised`      promises of each source of queries, and in words what is not promised
`population`    which queries that rests on
`since`         what happened since, by the feedback that a service kept
`signing`       canonical JSON, Ed25519 keys and signatures
`files`         certificate.json and its page, written and read
`page`          content → one page
`verification`  a certificate against its bundle: every difference by name
==============  =================================================================================

Nothing here needs torch, a network or the gallery's vectors.
"""
