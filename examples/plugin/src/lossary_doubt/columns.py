"""The column that this package adds to the vocabulary."""

from lossary import column

TRUST = column(
    "trust",
    level="sequence",
    doc="how far the grade of this sequence can be trusted: 0 not at all, 1 entirely; the share of a judge's votes that agree, for one",
)

# What a component reads is cut to this range: a trust below 0 would turn an advantage around.
LOWEST, HIGHEST = 0.0, 1.0
