"""Batches from shards, in an order that resumes exactly."""
