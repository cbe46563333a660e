"""A campaign for the steps of the source, which need no reader, and those steps."""

import pyarrow.parquet as pq

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.raw_files import read_manifest
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range


def opened(config):
    """Open a campaign from what its jobs have recorded."""
    return Campaign.open(config, "recorded")


def listed(config, name, progress=None):
    """List a range; return the entries of its manifest."""
    list_range(opened(config), str(name), progress or NullProgress())
    return read_manifest(config.paths().manifest(str(name)))


def staged(config, name, progress=None):
    """Stage a range, and list it first if it has no manifest; return the rows of its table by path."""
    if not config.paths().manifest(str(name)).exists():
        listed(config, name)
    stage_range(opened(config), str(name), progress or NullProgress())
    return {row["path"]: row for row in pq.read_table(config.paths().staged(str(name))).to_pylist()}
