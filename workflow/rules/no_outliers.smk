"""The targets of outliers.smk where every event has the same number of items: there is nothing more to do.

In: results/ledgers, the receipt of the last link. Out: nothing.
"""


localrules:
    outliers_consolidated,
    train_outliers,


rule outliers_consolidated:
    """Split every range; events of a fixed size have no outliers."""
    input:
        [PATHS.ledger(name) for name in RANGES],


rule train_outliers:
    """Train on every range; the chain has no link of its own for outliers."""
    input:
        PATHS.receipt(LINKS[-1]),
