"""A classifier of jets: particles in, the probabilities of three classes out."""
