"""Results of the papers; reports show them beside the measured results.

The results of the Laplace metric-learning paper (Warburg et al. 2023) come from the history of its
public repository. They are interim results: mean ± standard deviation over at most five seeds. The
results changed between commits; one correction changed AUSC by up to 0.16. Each table here
therefore has the results of only one commit.
"""

from __future__ import annotations

from collections.abc import Mapping

METRICS = (
    "recall_at_1",
    "map_at_5",
    "map_at_10",
    "ood_auroc",
    "ood_auprc",
    "ausc",
    "ece",
)
"""The metrics in the columns of the tables below, in this order."""


def _rows(table: str) -> Mapping[str, Mapping[str, str]]:
    """Return the results of each method; "-" in the table means that there is no result."""
    rows = {}
    for line in table.strip().splitlines():
        name, *figures = line.split()
        rows[name] = {
            metric: figure.replace("±", " ± ")
            for metric, figure in zip(METRICS, figures, strict=True)
            if figure != "-"
        }
    return rows


FASHION_MNIST = _rows("""
deterministic              0.78±0.01 0.73±0.01 0.72±0.01 - - - -
mc_dropout                 0.76±0.03 0.71±0.03 0.70±0.03 0.93±0.03 0.93±0.03 0.84±0.06 0.03±0.04
hib                        0.44±0.02 0.36±0.02 0.33±0.02 0.52±0.04 0.76±0.02 0.49±0.03 0.31±0.16
pfe                        0.78±0.00 0.74±0.00 0.72±0.00 0.53±0.03 0.46±0.01 0.65±0.01 0.26±0.02
lam_posthoc_fixed          0.78±0.00 0.74±0.00 0.72±0.00 0.97±0.02 0.97±0.02 0.73±0.01 0.01±0.00
lam_posthoc_positives      0.78±0.00 0.74±0.00 0.72±0.00 0.98±0.01 0.98±0.01 0.78±0.03 0.07±0.01
lam_posthoc_full           0.78±0.00 0.74±0.00 0.72±0.00 0.94±0.03 0.94±0.03 0.84±0.01 0.02±0.00
lam_online_fixed           0.81±0.01 0.77±0.01 0.76±0.01 0.94±0.02 0.94±0.03 0.73±0.01 0.04±0.01
lam_online_full            0.82±0.00 0.77±0.00 0.76±0.00 0.95±0.02 0.96±0.02 0.83±0.01 0.01±0.00
lam_posthoc_fixed_arccos   0.78±0.00 0.74±0.00 0.72±0.00 0.98±0.01 0.98±0.01 0.76±0.02 0.02±0.00
lam_posthoc_positives_arccos 0.78±0.00 0.74±0.00 0.72±0.00 0.99±0.01 0.98±0.01 0.78±0.02 0.07±0.01
lam_posthoc_full_arccos    0.78±0.00 0.74±0.00 0.72±0.00 0.99±0.01 0.98±0.01 0.77±0.02 0.02±0.01
""")
"""Results of commit 89588b3. In this commit, the table has no label. The recall shows that the
table is for Fashion-MNIST: the preceding table has this label and the same recall."""

CIFAR10 = _rows("""
deterministic              0.66±0.00 0.59±0.00 0.58±0.00 - - - -
mc_dropout                 0.46±0.01 0.37±0.01 0.34±0.01 0.60±0.03 0.76±0.02 0.61±0.01 0.05±0.00
hib                        0.11±0.01 0.07±0.00 0.05±0.00 0.44±0.17 0.70±0.10 0.29±0.03 0.04±0.02
pfe                        0.66±0.00 0.60±0.00 0.58±0.00 0.21±0.02 0.56±0.01 0.56±0.01 0.11±0.01
lam_posthoc_fixed          0.65±0.00 0.59±0.00 0.57±0.00 0.23±0.04 0.57±0.01 0.64±0.01 0.14±0.01
lam_posthoc_positives      0.66±0.00 0.60±0.00 0.58±0.00 0.51±0.09 0.69±0.05 0.82±0.00 0.35±0.01
lam_posthoc_full           0.65±0.00 0.58±0.01 0.56±0.01 0.57±0.11 0.72±0.07 0.82±0.00 0.24±0.02
lam_online_fixed           0.68±0.01 0.62±0.01 0.60±0.01 0.16±0.05 0.55±0.02 0.63±0.02 0.08±0.01
lam_online_full            0.68±0.01 0.62±0.01 0.60±0.01 0.20±0.04 0.56±0.01 0.62±0.01 0.13±0.02
lam_posthoc_fixed_arccos   0.66±0.00 0.60±0.00 0.58±0.00 0.50±0.11 0.69±0.07 0.81±0.01 0.23±0.01
lam_posthoc_positives_arccos 0.66±0.00 0.60±0.00 0.58±0.00 0.50±0.11 0.69±0.06 0.81±0.00 0.35±0.01
lam_posthoc_full_arccos    0.66±0.00 0.60±0.00 0.58±0.00 0.51±0.11 0.70±0.06 0.81±0.00 0.25±0.01
""")
"""The figures of commit 89588b3."""

LFW = _rows("""
lam_posthoc_fixed          0.45±0.00 0.70±0.00 0.67±0.00 0.57±0.25 0.68±0.19 0.44±0.01 0.57±0.01
lam_posthoc_positives      0.45±0.00 0.70±0.00 0.67±0.00 0.58±0.23 0.68±0.18 0.45±0.01 0.56±0.01
lam_posthoc_full           0.45±0.01 0.70±0.00 0.67±0.00 0.56±0.26 0.68±0.19 0.44±0.01 0.57±0.01
lam_posthoc_fixed_arccos   0.45±0.01 0.69±0.00 0.67±0.00 0.53±0.20 0.65±0.15 0.46±0.02 0.58±0.01
lam_posthoc_positives_arccos 0.46±0.01 0.70±0.00 0.67±0.00 0.29±0.11 0.49±0.06 0.48±0.01 0.56±0.01
lam_posthoc_full_arccos    0.45±0.01 0.69±0.00 0.67±0.00 0.55±0.18 0.66±0.14 0.45±0.01 0.57±0.01
lam_online_fixed           0.37±0.01 0.63±0.01 0.60±0.01 0.77±0.04 0.78±0.05 0.31±0.02 0.65±0.02
lam_online_positives       0.46±0.00 0.70±0.00 0.68±0.00 0.38±0.10 0.55±0.06 0.47±0.01 0.75±0.02
lam_online_full            0.43±0.01 0.67±0.01 0.64±0.01 0.59±0.04 0.66±0.03 0.42±0.01 0.50±0.01
lam_online_fixed_arccos    0.46±0.00 0.71±0.00 0.69±0.00 0.78±0.18 0.84±0.14 0.50±0.03 0.74±0.03
lam_online_positives_arccos 0.45±0.00 0.70±0.00 0.68±0.00 0.23±0.03 0.46±0.01 0.46±0.00 0.75±0.06
lam_online_full_arccos     0.46±0.01 0.71±0.00 0.69±0.00 0.70±0.12 0.77±0.10 0.51±0.01 0.74±0.03
""")
"""Results of commit e57a3c8."""

CROSS_ENTROPY, PROXIES = (
    "cross-entropy, ResNet-50 (Boudiaf et al. 2020, Tab. 4)",
    "ProxyAnchor with EL-nivMF, ResNet-50, 512-d (Kirchhof et al. 2022, Tab. 1)",
)

RECORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "cub-200": {
        CROSS_ENTROPY: {"recall_at_1": "0.692"},
        PROXIES: {"recall_at_1": "0.693"},
    },
    "cars-196": {
        CROSS_ENTROPY: {"recall_at_1": "0.893"},
        PROXIES: {"recall_at_1": "0.862"},
    },
    "stanford-online-products": {
        CROSS_ENTROPY: {"recall_at_1": "0.811"},
        PROXIES: {"recall_at_1": "0.794"},
    },
    "in-shop": {CROSS_ENTROPY: {"recall_at_1": "0.906"}},
}
"""The best published results by protocol and objective."""

CUB200 = _rows("""
pfe                        0.62±0.01 0.49±0.00 0.43±0.00 0.42±0.21 0.50±0.08 0.61±0.03 0.06±0.03
""")
"""Results of commit d039171."""
