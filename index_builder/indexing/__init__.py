"""Batch indexing: turns a collection of images into a gallery with an existing encoder.

::

    sources ──► catalogue ──► blocks ──► decoders ──► encoder ──► shards ──► gallery files
    (folder,    (SQLite: ids  (images    (processes)  (batches    (files,    (sorted by id)
    manifest,   distinct,     that go                 of one      checksums)
    archive)    in order)     together)               size)

`collection` is the entry point: it turns a collection into a bundle. A collection is cut into
`blocks`. `prepare` turns the files of a block into the encoder's input. `engines` turns this input
into shards, in parallel on one machine or on a Ray cluster (`ray_engine`), and stops if too many
images are unreadable. `workdir` is the directory of a run, with its shards. `assemble` builds the
gallery from the shards, and the manifest of its bundle; it also publishes a gallery without items.
`catalogue` lists the images, and chooses those that become queries instead of gallery items.
`calibrate` calibrates with these queries. `own_queries` reads the user's queries. `bundle_evidence`
calibrates and evaluates a bundle with these, or with captions. `evaluation_page` shows the result,
`comparison` compares two bundles, and `unknown` groups the queries that match nothing.
`recalibrate` calibrates again with the queries that the bundle stores. `parents` reads the parents
of labels. `fetching` downloads images from a bucket or the web just before they are decoded.
`local_copy` copies a source into a folder, for builds that read the source repeatedly. `dry_run`
embeds a sample and estimates time and space.

The same collection gives the same gallery, bit for bit. Interruptions and the number of processors
do not change the gallery. The position of an image in the source determines the block of the image.
An unreadable image therefore does not move other images to another block. All batches have the same
size, and each batch is encoded on one thread.
"""
