"""What people get wrong: readers, a simulator and workloads that crpipe has to refuse in words."""
