"""Start or stop a federation: ``PYTHONPATH=tests/support python -m loopback up|down FOLDER``."""

import sys
from pathlib import Path

from crpipe.core.errors import CrpipeError
from loopback.federation import LoopbackFederation

action, folder = sys.argv[1:]
federation = LoopbackFederation(Path(folder))
try:
    print("\n".join(federation.up()) if action == "up" else federation.down())  # noqa: T201 - for a shell
except CrpipeError as error:
    sys.exit(f"loopback: {error}")
