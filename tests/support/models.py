"""The model verbs on a configuration, as the command line calls them."""

from crpipe.campaign.campaign import Campaign
from crpipe.inference.evaluate import evaluate_link
from crpipe.train.link import train_link


def train_range(config, name, progress, **options):
    train_link(Campaign.open(config), name, progress, **options)


def evaluate_range(config, name, progress):
    evaluate_link(Campaign.open(config), name, progress)
