"""A calorimeter of 64 tiles, all of them read out in every event, and a simulation of it.

A workload from outside crpipe, with as little as a workload may have: no figures, no declared metrics.
"""
