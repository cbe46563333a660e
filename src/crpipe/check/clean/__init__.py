"""`crpipe clean`: what a campaign does not need any more, why, and its deletion."""
