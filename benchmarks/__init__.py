"""What crpipe costs, beside other systems and other commits: ``python -m benchmarks --list``."""
