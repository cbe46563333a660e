import asyncio

import pytest

from crpipe.source.local import LocalSource
from crpipe.source.pelican.source import RemoteSource
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_copier, open_source
from crpipe.source.uris import SourceOptions


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
