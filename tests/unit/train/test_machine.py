import torch

from crpipe import __version__
from crpipe.train.ranks import World, machine


def test_the_device_and_the_versions_are_named():
    found = machine(World(0, 2, torch.device("cpu")))
    assert (found["device"], found["ranks"], found["crpipe"]) == ("cpu", 2, __version__)
    assert found["torch"] == torch.__version__
