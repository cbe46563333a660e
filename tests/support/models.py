"""The jobs of the model verbs, composed from a configuration as the command line does it."""

from crpipe.campaign import claims
from crpipe.campaign.campaign import Campaign
from crpipe.cli.jobs.model import evaluate_job, train_job
from crpipe.inference.evaluate import evaluate_link
from crpipe.train.job import train_link


def train_range(config, name, progress, **options):
    campaign = Campaign.open(config)
    job = train_job(campaign, name)
    claims.claim_train(campaign)
    train_link(job, progress, **options)


def evaluate_range(config, name, progress):
    evaluate_link(evaluate_job(Campaign.open(config), name), progress)
