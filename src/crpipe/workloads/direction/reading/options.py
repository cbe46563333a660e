"""Options of the readers of pulses."""

from __future__ import annotations

from crpipe.config.keys import Section, key


class KaggleFilesOptions(Section):
    """What KaggleFiles keeps beside the direction."""

    truth: tuple[str, ...] = key(
        (), "further columns of the metadata to keep with each event, for example [energy_gev]", "data"
    )
