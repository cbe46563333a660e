"""One point of benchmarks/gpu.py, in a process of its own: ``gpu_point.py MODULE:FUNCTION GIVEN OPTIONS``."""

from __future__ import annotations

import importlib
import json
import sys

from gpu_rows import Given


def main() -> None:
    """Import the function and call it."""
    place, given, options = sys.argv[1:]
    module, _, name = place.partition(":")
    getattr(importlib.import_module(module), name)(Given.of_json(given), **json.loads(options))


if __name__ == "__main__":
    main()
