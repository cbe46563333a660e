"""The contract of readers, simulators and workloads, checked by ``crpipe plan --probe`` and by pytest."""
