"""Batch indexing: turns any collection of images into a gallery, with an encoder.

::

    sources ──► catalogue ──► blocks ──► decoders ──► encoder ──► shards ──► gallery files
    (folder,    (SQLite: ids  (images    (processes)  (batches    (files,    (sorted by id)
    manifest,   distinct,     that go                 of one      checksums)
    archive)    in order)     together)               size)

`collection` is the entry point: it turns a collection into a bundle. A collection is cut into
`blocks`. `prepare` turns the files of a block into the encoder's input, `embed` turns the input
into a shard, and `shards` stores it. `decoders` and `engines` overlap this work, on one machine or
on a Ray cluster (`ray_engine`). `embed_catalogue` embeds all blocks and stops if more images are
unreadable than the `tolerance` allows. `workdir` is the directory of a run. `assemble` builds the
gallery from the shards, `reports` lists the images that are not in it, and `bundle_manifest` writes
the manifest. `holding_out` holds images out as queries, and `calibrate` calibrates with them.
`own_queries` reads the user's queries. `bundle_evidence` calibrates and evaluates a bundle with
them, `evaluation_page` shows the result, `comparison` compares two bundles, and `unknown` groups
the queries that match nothing. `recalibrate` calibrates again with the queries that the bundle
keeps. `parents` reads the parents of labels, `captions` reads texts, and `text_evidence` calibrates
with texts. `truth` finds the label of the item that a query names. `fetching` downloads images from
a bucket or the web just before they are decoded. `local_copy` copies a source into a folder, for
builds that read it repeatedly. `dry_run` estimates time and space and embeds only a sample.
`from_images` indexes the images of a training configuration with the same modules.

The same collection gives the same gallery, bit for bit. Interruptions and the number of processors
do not change it: blocks are cut by position in the source, an unreadable image leaves its position
empty, all batches have one size, and each batch is encoded on one thread.
"""
