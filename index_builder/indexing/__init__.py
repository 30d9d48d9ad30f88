"""Batch indexing: any collection of images, through an encoder, into a gallery.

::

    sources ──► catalogue ──► blocks ──► decoders ──► encoder ──► shards ──► gallery files
    (folder,    (SQLite: ids  (images    (processes)  (batches    (files,    (sorted by id)
    manifest,   distinct,     that go                 of one      checksums)
    archive)    in order)     together)               size)

`blocks` defines what is processed together, `prepare` turns files into the encoder's input, `embed`
the input into a shard, `shards` keeps it; `decoders` and `engines` overlap the work, on one machine
or on a Ray cluster (`ray_engine`); `assemble` makes the gallery of the shards, `reports` lists what
is not in it, `bundle_manifest` describes itself; `workdir` is the directory that all of this lies
in, `embed_catalogue` fills it, within the `tolerance`, and `collection` is the way in: a collection
to a bundle. `holding_out` keeps images back as queries, `calibrate` calibrates with them;
`own_queries` reads queries of the user, and `bundle_evidence` calibrates and measures a
bundle with them, shown on an `evaluation_page`, and two of them in `comparison`; `unknown` groups
those that match nothing; `recalibrate` does so again with those that the bundle keeps; `parents`
reads what stands above labels, `captions` texts, and `text_evidence` calibrates with them; `truth`
maps the items that they name to ids. `fetching` brings images that lie in a bucket or on the web,
for the decoders and no longer; `local_copy` makes a folder of such a source, for builds that read
it again and again. `dry_run` looks and embeds nothing. `from_images` indexes the images of a
training configuration through the same rooms.

The same collection gives the same gallery, bit for bit, however often the work was interrupted and
on however many processors: blocks are cut by place in the source, an image that cannot be read
leaves its place empty, batches have always one size, and the encoder computes each on one thread.
"""
