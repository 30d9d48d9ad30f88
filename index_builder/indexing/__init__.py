"""Batch indexing: any collection of images, through an encoder, into a gallery.

::

    sources ──► catalogue ──► blocks ──► decoders ──► encoder ──► shards ──► gallery files
    (folder,    (SQLite: ids  (images    (processes)  (batches    (files,    (sorted by id)
    manifest,   distinct,     that go                 of one      checksums)
    archive)    in order)     together)               size)

`blocks` says what travels together, `preparing` turns files into the encoder's input,
`embedding` the input into a shard, `shards` keeps it; `decoders` and `engines` overlap the work, on
one machine or on a Ray cluster (`ray_engine`); `assemble` makes the gallery of the shards,
`reports` say what is not in it; `work` is the directory that all of this lies in, `run` fills it,
and `collections` is the way in: a collection to a bundle; `calibrating` makes queries of the
collection's own images. `dry_run` looks and embeds nothing. `gallery` indexes the images of a
training configuration through the same rooms.

The same collection gives the same gallery, bit for bit, however often the work was interrupted and
on however many processors: blocks are cut by place in the source, an image that cannot be read
leaves its place empty, batches have always one size, and the encoder computes each on one thread.
"""
