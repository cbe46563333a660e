"""Train: the workload protocol and the only training loop."""
