"""Workloads: what is trained; each is a package that train.workload names."""
