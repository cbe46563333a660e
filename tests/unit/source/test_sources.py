import asyncio

import pytest

from crpipe.campaign.simulators import GeneratedSource
from crpipe.core.errors import ConfigError
from crpipe.source.local import LocalSource
from crpipe.source.pelican.source import RemoteSource
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_copier, open_source
from crpipe.source.uris import SourceOptions
from simulators import Tiny


def opened(opener, scheme, options=None):
    async def run():
        deadline = Deadline(10, "a test")
        async with opener(options or SourceOptions(), scheme, "localhost:1", deadline) as source:
            return source

    return asyncio.run(run())


@pytest.mark.parametrize("opener", [open_source, open_copier])
@pytest.mark.parametrize(
    ("scheme", "kind"), [("file", LocalSource), ("pelican", RemoteSource), ("osdf", RemoteSource)]
)
def test_the_scheme_chooses_the_source(opener, scheme, kind):
    assert isinstance(opened(opener, scheme), kind)


def test_what_a_simulator_makes_is_copied_by_making_it():
    options = SourceOptions(simulator="simulators:Tiny", seed=5)
    source = opened(open_copier, "synthetic", options)
    assert isinstance(source, GeneratedSource)
    assert isinstance(source._simulator, Tiny)


def test_a_missing_simulator_is_told():
    with pytest.raises(ConfigError, match=r"source\.simulator: not set; write module:Name"):
        opened(open_copier, "synthetic")
