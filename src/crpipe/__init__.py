"""crpipe: from raw simulation files in many range directories to a trained model.

``crpipe.open("runs/demo")`` opens a campaign in Python.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from crpipe.api.campaign import CampaignRun

__all__ = ["__version__", "open"]
__version__ = "0.1.0"


def open(  # noqa: A001 - crpipe.open, as in gzip.open
    run: str | os.PathLike[str],
    *,
    results: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
) -> CampaignRun:
    """Open a run and its campaign from their files; nothing is written, and jobs may run meanwhile.

    run: the folder of the run, such as ``runs/demo``.
    results: the directory of its data; without it, the one below the same directory as ``runs`` whose
        ``campaign.json`` names the keys of the run.
    config: YAML files of the campaign, over ``config/config.yaml`` beside ``runs``. Needed only to see the
        ranges and links that are still to come, and for a workload or reader of a package that declares none.

    Raise DataError when the folder is no run or the data are those of other keys, ConfigError for a
    configuration that is wrong or of another run.

    >>> campaign = crpipe.open("runs/demo")
    >>> campaign.ranges.select("range", "events", "state")
    >>> campaign.model("latest").generate({"energy_gev": [1e6], "zenith_rad": [0.3], ...})
    """
    # Imported by name: most programs that import crpipe, such as its own command line, open no campaign.
    campaign: CampaignRun = importlib.import_module("crpipe.api.campaign").open_run(
        run, results=results, config=config
    )
    return campaign
