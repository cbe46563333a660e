"""Addresses of a loopback federation, in one JSON file that every part reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from crpipe.core.files import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

PROTECTED = "/icecube/wipac"  # namespace that needs a token
OPEN = "/public"  # namespace that needs none


@dataclass
class Topology:
    """Addresses of a loopback federation.

    ``port`` is the director's (and the federation's own), ``origin_port`` the XRootD origin's. ``director``
    is the URL that clients are sent to.
    """

    port: int
    origin_port: int
    director: str = ""

    def __post_init__(self) -> None:
        self.director = self.director or f"https://localhost:{self.port}"

    @property
    def origin(self) -> str:
        """URL of the origin, which also serves readers: there are no caches."""
        return f"https://localhost:{self.origin_port}"

    @property
    def host(self) -> str:
        """Host and port for ``pelican://`` URIs."""
        return f"localhost:{self.port}"

    @property
    def issuer(self) -> str:
        """URL of the token issuer."""
        return f"https://localhost:{self.port}/issuer"

    def save(self, folder: Path) -> None:
        """Write the topology of the federation in ``folder``; the director sees it with the next request."""
        write_json(folder / "topology.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Topology:
        """Read the topology of the federation in ``folder``."""
        return cls(**read_json(folder / "topology.json"))
