"""The jobs of the model verbs, composed from a configuration as the command line does it."""

from crpipe.campaign import claims
from crpipe.campaign.campaign import open_campaign
from crpipe.cli.jobs.model import evaluate_job, train_job
from crpipe.inference.evaluate import evaluate_link
from crpipe.train.job import train_link


def train_range(config, name, progress, **options):
    campaign = open_campaign(config)
    job = train_job(campaign, name)
    claims.claim_train(campaign.paths, dict(job.keys))
    train_link(job, progress, **options)


def evaluate_range(config, name, progress):
    evaluate_link(evaluate_job(open_campaign(config), name), progress)
