"""A campaign for the steps of the source, which need no reader."""

from crpipe.campaign.campaign import Campaign


def opened(config):
    """Open a campaign from what its jobs have recorded."""
    return Campaign.open(config, "recorded")
