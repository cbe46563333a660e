"""A detector of light sensors on a plane: ragged events of hits, with a truth table and a geometry.

A workload from outside crpipe. This file imports nothing: `crpipe status` must start without torch.
"""
