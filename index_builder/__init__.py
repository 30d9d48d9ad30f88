"""The offline half of Vouch: from labelled images to a bundle that can be served.

The steps, each a sub-command of ``vouch-build`` that reads and writes files in a run directory
(`index_builder.run`), so that any of them can be repeated alone:

==========  ==========================================================  =========================
step        does                                                        room
==========  ==========================================================  =========================
train       images → encoder, and what its objective learns             `training`, `objectives`
fit         encoder → posterior: Laplace, an ensemble's, learned, …     `fitting`, `posteriors`
export      encoder and posterior → ONNX, refused unless it agrees      `export`
index       gallery images → FAISS, variances, items                    `indexing`
calibrate   held-out queries → decision layer                           `calibration`
evaluate    other held-out queries → table and JSON                     `evaluation`, `metrics`
publish     all of it → a verified bundle, by one rename                `model_store.bundle`
==========  ==========================================================  =========================

`vouch-build index SOURCE` indexes any collection with an encoder that exists, and publishes it;
`doctor` says what is wrong.

`vouch-build certify` writes what a bundle promises as a signed file and a page, `verify` computes
it again (`certificates`).

`configuration` is what a TOML file may say, `datasets` what the images are, `networks` what the
encoder is, `methods` what the papers compare, by name, `steps` ties files to functions, `fitted`
reads back what they left, and ``vouch-build all`` runs the lot.

``vouch-build reproduce`` runs the first three for each of the papers' methods on a published
protocol (`protocols`), and measures them beside the decision layer (`reproduction`).
"""
