"""Side tables as the job that stages them leaves them."""

from crpipe.campaign.campaign import Campaign
from crpipe.core.files import sha256, write_json


def with_tables(campaign, tables):
    """Record files as the verified copies of the side tables; return the campaign that knows them."""
    rows = {
        name: {"uri": str(path), "path": str(path), "size": path.stat().st_size, "sha256": sha256(path)}
        for name, path in tables.items()
    }
    write_json(campaign.paths.tables(), rows)
    return Campaign.open(campaign.config, "reader" if campaign.known_layout else "recorded")
