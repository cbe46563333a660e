"""The contract of readers, simulators and workloads as tests: ``pytest --pyargs crpipe.contract``."""

from crpipe.core.errors import require

require("pytest", extra="contract", why="to run the contract's tests")
