"""One staged range becomes shards, outliers and a ledger."""
