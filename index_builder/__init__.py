"""The offline half of Vouch: from labelled images to a bundle that can be served.

The steps, each a sub-command of ``vouch-build`` (`commands`) that reads and writes files in a run
directory (`pipeline`), so that any of them can be repeated alone:

==========  ==========================================================  =========================
step        does                                                        room
==========  ==========================================================  =========================
train       images → encoder, and what its objective learns             `training`, `methods`
fit         encoder → posterior: Laplace, an ensemble's, learned, …     `methods`
export      encoder and posterior → ONNX, refused unless it agrees      `pipeline.export`
index       gallery images → FAISS, variances, items                    `indexing`
calibrate   held-out queries → decision layer                           `calibration`
evaluate    other held-out queries → table and JSON                     `calibration`, `metrics`
publish     all of it → a verified bundle, by one rename                `model_store.bundles`
==========  ==========================================================  =========================

Two columns meet in `pipeline`: with torch
``methods → training → objectives → posteriors → networks``, without it
``indexing → calibration → datasets``. `vectors` keeps what was computed of images, for all steps.
`storage` reads what lies in buckets and on the web. `configuration` is what users may set;
`progress` shows how far a step is; `output` puts errors of writing into words; `interrupts` is for
Ctrl+C; `whitening` fits a last layer in closed form. `encoders` has the encoder that comes with the
package, and finds every other by its name or path; `foreign_encoders` exports those of other
libraries; `certificates` writes what a bundle promises as a signed
file and a page, and checks one. `exchange` brings bundles to other places and from them.
`reproduction` runs the papers' methods on their published protocols.
"""
