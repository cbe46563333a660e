"""Data: raw rows become shards, outliers and a ledger; shards become batches."""
