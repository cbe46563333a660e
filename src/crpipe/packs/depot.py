"""A directory or ``pelican://`` address that holds shards for packs, and the states of links between slices.

Names hold the sha256 of what they name: a cache that keeps an old file can never serve a wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crpipe.campaign.raw_files import Entry
from crpipe.core.errors import PackError, TransferError
from crpipe.core.files import make_folder, publish, remove_tree, sha256
from crpipe.source.copies import Copies, CopyRules
from crpipe.source.retries import Deadline, TemporaryFailure, retry, run_concurrently
from crpipe.source.sources import SecondPlace, open_second_place
from crpipe.source.uris import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from crpipe.campaign.records import PackedFile
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

Answer = TypeVar("Answer")

KEPT = 2  # states that an index names
_STATE = re.compile(r"state-[0-9a-f]+-(\d{10})-([0-9a-f]{64})\.tar")


class Depot:
    """One such depot, asked by the sender of `crpipe sync`."""

    def __init__(self, config: Config, to: str) -> None:
        self._config = config.model_copy(update={"sync": config.sync.model_copy(update={"to": to})})
        self._options, self._to = SourceOptions.of(config), to.rstrip("/")

    def uri(self, name: str) -> str:
        """Return the whole address of a file."""
        return f"{self._to}/{name}"

    def send_missing(self, files: Mapping[str, tuple[Path, PackedFile]]) -> int:
        """Send the files that are not there yet, by their names there; return how many these were."""
        sent: list[str] = []

        async def send(depot: SecondPlace) -> None:
            async def one(name: str) -> None:
                path, file = files[name]
                if await self._retry(lambda: depot.size(name)) != file.size:
                    await self._retry(lambda: depot.send(path, name))
                    sent.append(name)

            await run_concurrently(files, one, self._options.concurrency)

        self._run(send)
        return len(sent)

    def save_state(self, key: str, step: int, state: Path) -> None:
        """Send the state of a link, and then the index that names it and the one before."""
        name = f"state-{key}-{step:010d}-{sha256(state)}.tar"

        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder, "index")

            async def send(depot: SecondPlace) -> None:
                await self._retry(lambda: depot.send(state, name))
                names = sorted({name, *await self._states(depot, key)}, key=_step_of)[-KEPT:]
                await asyncio.to_thread(index.write_text, json.dumps(names))
                await self._retry(lambda: depot.send(index, _index_of(key)))

            self._run(send)

    def fetch_state(self, key: str, path: Path, say: Callable[[str], None]) -> bool:
        """Bring the newest state of a link whose hash fits; name those that do not; False: there is none."""
        return self._run(lambda depot: self._fetch_state(depot, key, path, say))

    async def _fetch_state(
        self, depot: SecondPlace, key: str, path: Path, say: Callable[[str], None]
    ) -> bool:
        for name in sorted(await self._states(depot, key), key=_step_of, reverse=True):
            is_there = await self._retry(partial(_read_anew, depot, name, path))
            if is_there and sha256(path) == name.removesuffix(".tar").rpartition("-")[2]:
                return True
            say(f"warning: {self.uri(name)}: {'damaged' if is_there else 'gone'}; it is not used")
        return False

    async def _states(self, depot: SecondPlace, key: str) -> list[str]:
        pieces: list[bytes] = []

        async def attempt() -> bool:
            pieces.clear()
            return await depot.read(_index_of(key), pieces.append)

        if not await self._retry(attempt):
            return []
        with contextlib.suppress(ValueError):
            names = json.loads(b"".join(pieces))
            return [name for name in names if isinstance(name, str) and _STATE.fullmatch(name)]
        return []

    def _run(self, work: Callable[[SecondPlace], Awaitable[Answer]]) -> Answer:
        async def opened() -> Answer:
            async with open_second_place(self._config) as depot:
                return await work(depot)

        try:
            return asyncio.run(opened())
        except TemporaryFailure as error:
            raise TransferError(f"{self._to}: {error}; run the same command again") from error

    async def _retry(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        deadline = Deadline(self._options.deadline_s, self._to)
        return await retry(attempt, attempts=self._options.attempts, deadline=deadline, patient=False)


async def _read_anew(depot: SecondPlace, name: str, path: Path) -> bool:
    """Read a file from its begin: a try before this one may have brought a part."""
    with path.open("wb") as out:
        return await depot.read(name, out.write)


def _index_of(key: str) -> str:
    return f"states-{key}.json"


def _step_of(name: str) -> int:
    return int(name.split("-")[2])


def fetch_referred(config: Config, folder: Path, files: Mapping[str, PackedFile], progress: Progress) -> None:
    """Bring the files that a pack only names, by their names in it, each verified by its sha256."""
    named = {name: file for name, file in files.items() if file.uri}
    if not named:
        return
    incoming = folder / ".incoming"
    make_folder(incoming)
    entries = [Entry(Path(file.uri or "").name, str(file.uri), file.size, None) for file in named.values()]
    rules = CopyRules("the pack's shards", "pack the link again, so that its shards are sent again")
    Copies(incoming, entries, SourceOptions.of(config), rules, progress).run()
    for name, file in named.items():
        copy = incoming / Path(file.uri or "").name
        if sha256(copy) != file.sha256:
            raise PackError(
                f"{file.uri}: not the file that was packed (another sha256); delete it there, and pack the "
                "link again, so that it is sent again"
            )
        make_folder((folder / name).parent)
        publish(copy, folder / name)
    remove_tree(incoming)
