"""What is fuzzed: for each kind of file, how a good one is made and how crpipe reads it.

A target is run in a folder of its own. ``checked``: a checksum covers the file, so that a changed result is
a failure; elsewhere values that stay legal cannot be told from good ones.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from campaign_files import CampaignFiles, linked
from counting import NAMED, checkpoint_of
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.claims import check_train
from crpipe.campaign.raw_files import (
    Entry,
    StagedFile,
    Verification,
    read_manifest,
    read_staged,
    write_manifest,
    write_staged,
)
from crpipe.campaign.readers import ReaderChoice
from crpipe.campaign.records import Receipt, table_keys, table_paths
from crpipe.config.loading import load_config
from crpipe.core.errors import FormatError, LedgerError, ListingError
from crpipe.core.journal import Journal
from crpipe.core.paths import ROLES
from crpipe.core.text import NullProgress
from crpipe.events.batch import Events, concatenate
from crpipe.events.shard_manifest import groups_of, read_layout
from crpipe.events.shard_reader import Shards
from crpipe.events.validity import find_invalid_events
from crpipe.inference.checkpoints import open_checkpoint, open_its_reader
from crpipe.inference.inputs import RawInput, RequiredColumns, count_rows, event_rows
from crpipe.report.estimates import measure_ratios
from crpipe.report.series import chain_rows
from crpipe.report.state import CampaignState, files_of
from crpipe.report.status import render_status, status_json
from crpipe.report.summary import render_summary
from crpipe.source.pelican.tokens import Tokens
from crpipe.source.pelican.webdav import parse_listing
from crpipe.source.positions import RecordedPositions
from crpipe.source.range_files import read_list
from crpipe.train.link_start import checkpoint_file, read_receipt
from crpipe.workloads.direction.layout import read_geometry
from crpipe.workloads.direction.reading.prometheus import geometry_of, read_sensors
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.reading.parquet import Bundles
from fuzz import mutations
from liquido_files import make_liquido, write_liquido
from named import READERS
from prometheus_files import write_flat, write_nested
from pulse_files import make_pulses, write_folder, write_simulated
from raw_files import make_events, read_through, write_hdf5, write_parquet
from root_files import make_sensors, make_truth, write_root
from toy import make_events as toy_events
from toy import write_shards

BYTES, JSON, YAML = mutations.change_bytes, mutations.change_json, mutations.change_yaml
PARQUET, HDF5, STATE = mutations.change_parquet, mutations.change_hdf5, mutations.change_state
COUNTS = [0, 3, 1, 0, 40, 2, 0, 0, 5]


@dataclass
class Target:
    """One kind of file: ``make(folder)`` writes good ones, ``run(folder)`` reads them.

    victims: what is changed, by the name in the folder, and in which ways. codes: exit codes of the errors.
    """

    name: str
    make: Callable[[Path], Any]
    run: Callable[[Path], Any]
    victims: dict[str, tuple[Callable[..., bytes], ...]]
    codes: tuple = (65, 66)
    checked: bool = False
    weight: int = 1
    caches: tuple = ()

    def read(self, folder):
        """Run, without what an earlier case left in memory."""
        for cache in self.caches:
            cache.cache_clear()
        return self.run(folder)


def digest(*values):
    """Hash arrays and plain values."""
    made = hashlib.sha256()
    for value in values:
        if isinstance(value, Events):
            made.update(digest(value.columns, value.multiplicity, value.items).encode())
        elif isinstance(value, dict):
            for name in sorted(value):
                made.update(name.encode() + digest(value[name]).encode())
        elif isinstance(value, np.ndarray):
            made.update(str((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
        else:
            made.update(repr(value).encode())
    return made.hexdigest()


def read_raw(choice, path):
    """Read a raw file as a split does: totals, values, legal intervals."""
    reader = choice.open()
    totals = reader.totals(path)
    blocks = list(reader.rows(path))
    found = sum(map(len, blocks)), sum(len(block.items) for block in blocks)
    if found != totals:
        raise LedgerError(f"{path}: totals {totals}, read {found}")
    for block in blocks:
        for row, reason in find_invalid_events(block, reader.layout).items():
            raise FormatError(f"{path}: row {row}: {reason}")
    return digest(concatenate(blocks)) if blocks else ""


# --- raw files ---------------------------------------------------------------------------------------------


def muon_file(how):
    def make(folder):
        write_parquet(folder / "a.parquet", COUNTS, row_group=4, **how)

    return make


def hdf5_file(folder):
    write_hdf5(folder / "a.h5", COUNTS, zeros_for_none=True)


def liquido_file(folder):
    write_liquido(folder / "a.h5", *make_liquido([30] * 5))


def root_file(folder):
    npho, time = make_sensors(2)
    write_root(folder / "a.root", npho, time, **make_truth(2))


def dead_files(folder):
    root_file(folder)
    (folder / "dead.csv").write_text("run,sensor_id\n" + "".join(f"{run},{7 * run}\n" for run in range(20)))


def kaggle_files(folder):
    columns, items = make_pulses([3, 1, 5, 2])
    write_folder(folder, {7: (columns, np.array([3, 1, 5, 2]), items)})


def simulated_file(folder):
    columns, items = make_pulses([3, 1, 5, 2])
    kaggle_files(folder)
    write_simulated(folder / "batch_1.parquet", columns, np.array([3, 1, 5, 2]), items)


def flat_file(folder):
    paths, _ = write_flat(folder, [([5, 9, 2], [4, 3, 6])])
    geometry_of(paths, folder / "geometry.csv")


def nested_file(folder):
    path = write_nested(folder / "1.parquet", [3, 0, 7])
    geometry_of([path], folder / "geometry.csv")


def raw(reader, name, tables=None, options=None):
    def run(folder):
        paths = {table: folder / path for table, path in (tables or {}).items()}
        return read_raw(ReaderChoice(reader, options or {}, paths), folder / name)

    return run


DIRECTION = "crpipe.workloads.direction.reading"
XEC = "crpipe.workloads.xec.reading"
PULSES = {"meta": "train_meta.parquet", "geometry": "sensor_geometry.csv"}
PLACES = (read_geometry, read_sensors)

RAW = [
    Target(
        "parquet",
        muon_file({}),
        raw(READERS["bundles"], "a.parquet"),
        {"a.parquet": (BYTES, PARQUET)},
        weight=3,
    ),
    Target("hdf5", hdf5_file, raw(READERS["bundles_hdf5"], "a.h5"), {"a.h5": (BYTES, HDF5)}, weight=3),
    Target("root", root_file, raw(f"{XEC}.root:RootFiles", "a.root"), {"a.root": (BYTES,)}, weight=2),
    Target(
        "dead",
        dead_files,
        raw(f"{XEC}.root:RootFiles", "a.root", {"dead": "dead.csv"}, {"dead": True}),
        {"dead.csv": (BYTES,)},
    ),
    Target("liquido", liquido_file, raw(f"{XEC}.hdf5:LiquidOFiles", "a.h5"), {"a.h5": (BYTES, HDF5)}),
    Target(
        "kaggle",
        kaggle_files,
        raw(f"{DIRECTION}.kaggle:KaggleFiles", "train/batch_7.parquet", PULSES),
        {
            "train/batch_7.parquet": (BYTES, PARQUET),
            "train_meta.parquet": (BYTES, PARQUET),
            "sensor_geometry.csv": (BYTES,),
        },
        weight=2,
        caches=PLACES,
    ),
    Target(
        "simulated",
        simulated_file,
        raw(f"{DIRECTION}.kaggle:SimulatedFiles", "batch_1.parquet", {"geometry": "sensor_geometry.csv"}),
        {"batch_1.parquet": (BYTES, PARQUET)},
        caches=PLACES,
    ),
    Target(
        "prometheus-flat",
        flat_file,
        raw(
            f"{DIRECTION}.prometheus:PrometheusHits",
            "total_0.parquet",
            {"truth": "truth.parquet", "geometry": "geometry.csv"},
        ),
        {"total_0.parquet": (BYTES, PARQUET), "truth.parquet": (BYTES, PARQUET), "geometry.csv": (BYTES,)},
        caches=PLACES,
    ),
    Target(
        "prometheus",
        nested_file,
        raw(f"{DIRECTION}.prometheus:PrometheusPhotons", "1.parquet", {"geometry": "geometry.csv"}),
        {"1.parquet": (BYTES, PARQUET)},
        caches=PLACES,
    ),
]


# --- lists of files, tokens --------------------------------------------------------------------------------

LISTING = """<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">
<D:response><D:href>/a/b/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop></D:propstat></D:response>
<D:response><D:href>/a/b/one.parquet</D:href><D:propstat><D:prop><D:getcontentlength>123</D:getcontentlength>
<D:getlastmodified>Thu, 01 Jan 2026 00:00:00 GMT</D:getlastmodified></D:prop></D:propstat></D:response>
<D:response><D:href>/a/b/two.parquet</D:href><D:propstat><D:prop><D:getcontentlength>456</D:getcontentlength></D:prop></D:propstat></D:response>
</D:multistatus>"""


def write_listing(folder):
    (folder / "listing.xml").write_text(LISTING)


def read_listing(folder):
    path = folder / "listing.xml"
    try:
        return parse_listing(path.read_bytes(), "/a/b")
    except ValueError as error:  # by its contract; the caller names the place
        raise ListingError(f"{path}: {error}") from error


def write_files(folder):
    (folder / "files.txt").write_text("# files\n/data/a.parquet\npelican://x/b.parquet\nc.parquet\n")


def entries():
    return [Entry(f"{n}.parquet", f"file:///data/{n}.parquet", 100 + n, None) for n in range(5)]


def write_range(folder):
    write_manifest(folder / "manifest.parquet", entries())
    proof = Verification(100, "0a", "crc32c", "copy-compare")
    write_staged(folder / "staged.parquet", [StagedFile(entry, proof) for entry in entries()])


def read_range(folder):
    return read_manifest(folder / "manifest.parquet"), read_staged(folder / "staged.parquet")


def write_positions(folder):
    positions = RecordedPositions(folder / "positions.json", folder / "positions.parquet")
    positions.record_or_check([f"{n}.parquet" for n in range(5)], 4, "file:///data", NullProgress())


def read_positions(folder):
    positions = RecordedPositions(folder / "positions.json", folder / "positions.parquet")
    positions.check_source("file:///data")
    return positions.read()


def write_token(folder):
    # no signature: the claims are all that crpipe reads
    (folder / "token").write_text(
        "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDAsInNjb3BlIjoic3RvcmFnZS5yZWFkOi8ifQ.x"
    )
    claims = {"access_token": (folder / "token").read_text(), "expires_in": 3600}
    (folder / "token.json").write_text(json.dumps(claims))
    for name in ("token", "token.json"):
        (folder / name).chmod(0o600)


def read_token(folder):
    found = [Tokens(str(folder / name)).current() for name in ("token", "token.json")]
    return [(each.text, each.scopes, each.expires, each.covers("storage.read:/x")) for each in found]


LISTS = [
    Target("listing", write_listing, read_listing, {"listing.xml": (BYTES,)}, weight=2),
    Target(
        "list", write_files, lambda folder: read_list(folder / "files.txt"), {"files.txt": (BYTES,)}, (2, 66)
    ),
    Target(
        "manifest",
        write_range,
        read_range,
        {"manifest.parquet": (BYTES, PARQUET), "staged.parquet": (BYTES, PARQUET)},
        weight=2,
    ),
    Target(
        "positions",
        write_positions,
        read_positions,
        {"positions.json": (BYTES, JSON), "positions.parquet": (BYTES, PARQUET)},
        (2, 65, 66),
    ),
    Target("token", write_token, read_token, {"token": (BYTES,), "token.json": (BYTES, JSON)}, (77,)),
]


# --- shards ------------------------------------------------------------------------------------------------


def write_folder_of_shards(folder):
    write_shards(
        folder,
        [("train-00000", "train", toy_events(60, 1)), ("validation-00000", "validation", toy_events(20, 2))],
        "d" * 16,
    )


def read_shards(folder):
    layout = read_layout(folder)
    return [
        digest(concatenate(found))
        for role in ROLES
        if (found := list(groups_of(Shards(folder, role, layout), layout)))
    ]


def verify_shards(folder):
    return read_through(folder), read_shards(folder)


FILES = ("train-00000.events.parquet", "train-00000.muons.parquet")
SHARDS = [
    Target("shards", write_folder_of_shards, read_shards, dict.fromkeys(FILES, (BYTES,)), (65,), weight=2),
    Target(
        "shards-verified",
        write_folder_of_shards,
        verify_shards,
        dict.fromkeys(FILES, (BYTES, PARQUET)),
        (65,),
        checked=True,
    ),
    Target(
        "shard-manifest",
        write_folder_of_shards,
        verify_shards,
        {"manifest.json": (BYTES, JSON)},
        (65,),
        weight=2,
    ),
]


# --- checkpoints and receipts ------------------------------------------------------------------------------


def write_checkpoint(folder):
    path = checkpoint_of(
        folder / "runs" / "r" / "store" / "0000000-0000999", **{"source.uri": "file:///data"}
    )
    path.rename(folder / "checkpoint.pt")
    Receipt(
        range="0000000-0000999",
        ranges=("0000000-0000999",),
        round=0,
        key="k",
        checkpoint=path.name,
        sha256="0" * 64,
        parent="",
        fingerprint="f",
        **dict.fromkeys(("step", "events", "items", "skipped"), 1),
    ).write(folder / "receipt.json")


def read_checkpoint(folder):
    """Open a checkpoint whose name has the hash of its content, whatever that is."""
    path = folder / "checkpoint.pt"
    named = folder / mutations.named_by_hash("checkpoint-k-0.pt", path.read_bytes())
    named.write_bytes(path.read_bytes())
    try:
        trained = open_checkpoint(named, allowed_plugins=NAMED)
        open_its_reader(trained)
        return digest({name: value.numpy() for name, value in trained.model.state_dict().items()})
    finally:
        named.unlink()


def write_named_checkpoint(folder):
    path = checkpoint_of(folder, **{"source.uri": "file:///data"})
    (folder / "name").write_text(path.name)
    path.rename(folder / "checkpoint.pt")


def read_named_checkpoint(folder):
    named = folder / (folder / "name").read_text()
    named.write_bytes((folder / "checkpoint.pt").read_bytes())
    try:
        return digest(open_checkpoint(named, allowed_plugins=NAMED).model.state_dict()["weight"].numpy())
    finally:
        named.unlink()


def follow_receipt(folder):
    receipt = folder / "receipt.json"
    checkpoint = checkpoint_file(receipt)
    read_receipt(receipt)
    return checkpoint


CHECKPOINTS = [
    Target(
        "checkpoint",
        write_checkpoint,
        read_checkpoint,
        {"checkpoint.pt": (BYTES, STATE, STATE)},
        (2, 65, 70),
        weight=3,
    ),
    Target(
        "checkpoint-hashed",
        write_named_checkpoint,
        read_named_checkpoint,
        {"checkpoint.pt": (BYTES,)},
        (65,),
        checked=True,
    ),
    Target("receipt", write_checkpoint, follow_receipt, {"receipt.json": (BYTES, JSON)}, (65,)),
]


# --- a campaign's own records ------------------------------------------------------------------------------


def campaign_of(folder):
    config = CampaignFiles(folder, 8, ("train.ranges_per_link=2", "train.passes=2")).config
    return Campaign.open(config, layout="recorded")


def read_campaign(folder):
    campaign = campaign_of(folder)
    check_train(campaign)
    measure_ratios(campaign, files_of(campaign)[0])
    state = CampaignState.read(campaign)
    found = [len(render_status(state, 120)), len(status_json(state)), len(render_summary(state))]
    return [*found, len(chain_rows(campaign)), Journal(campaign.paths.data_journal()).rows()]


FIRST = "0000000-0000999"
RECORDS = ("results/campaign.json", "results/layout.json", "runs/default/campaign.json")
RECEIPTS = tuple(f"runs/default/ranges/{name}.json" for name in ("0000000-0001999", "0002000-0003999.best"))
LOGS = (
    "results/journal.jsonl",
    "runs/default/journal.jsonl",
    "runs/default/store/0002000-0003999/metrics.jsonl",
)
PRODUCTS = (
    f"results/ledgers/{FIRST}.json",
    f"results/multiplicity/{FIRST}.histogram.json",
    f"results/shards/{FIRST}/manifest.json",
    f"results/outliers/{FIRST}/manifest.json",
)


def campaign(name, victims, **more):
    return Target(name, linked, read_campaign, dict.fromkeys(victims, (BYTES, JSON, JSON)), (2, 65), **more)


CAMPAIGNS = [
    campaign("records", RECORDS),
    campaign("receipts", RECEIPTS, weight=2),
    campaign("journals", LOGS, weight=2),
    campaign("ledger", PRODUCTS, weight=2),
]


# --- configuration, side tables, tables of event columns ---------------------------------------------------


def write_configuration(folder):
    source = Path(__file__).parents[2] / "config" / "demo.yaml"
    (folder / "config.yaml").write_text(source.read_text())


def read_configuration(folder):
    config = load_config([folder / "config.yaml"])
    return repr((config, config.all_ranges(), config.train_keys()))


def write_tables(folder):
    copy = folder / "tables" / "geometry.csv"
    copy.parent.mkdir()
    copy.write_text("sensor_id,x,y,z\n")
    row = {
        "uri": "file:///g.csv",
        "path": "tables/geometry.csv",
        "size": copy.stat().st_size,
        "sha256": "0" * 64,
    }
    (folder / "tables.json").write_text(json.dumps({"geometry": row}))


def read_tables(folder):
    return table_paths(folder / "tables.json"), table_keys(folder / "tables.json")


def write_primaries(folder):
    columns, multiplicity, _ = make_events(COUNTS)
    table = pa.table({**columns, "multiplicity": multiplicity})
    pq.write_table(table, folder / "a.parquet")
    pyarrow.csv.write_csv(table, folder / "a.csv")


def primaries(name):
    wanted = RequiredColumns.of(BUNDLES, ("energy_gev", "zenith_rad", "mass_number", "depth_m"))

    def run(folder):
        raw = RawInput((), Bundles(), {})
        paths = (folder / name,)
        count_rows(paths, raw, wanted)
        return [digest(block) for block in event_rows(paths, wanted, raw, 4)]

    return run


OTHERS = [
    Target(
        "configuration",
        write_configuration,
        read_configuration,
        {"config.yaml": (BYTES, YAML, YAML)},
        (2,),
        weight=3,
    ),
    Target("side-tables", write_tables, read_tables, {"tables.json": (BYTES, JSON)}, (65,)),
    Target("event-columns", write_primaries, primaries("a.parquet"), {"a.parquet": (BYTES, PARQUET)}),
    Target("event-columns-csv", write_primaries, primaries("a.csv"), {"a.csv": (BYTES,)}),
]

TARGETS = {each.name: each for each in (*RAW, *LISTS, *SHARDS, *CHECKPOINTS, *CAMPAIGNS, *OTHERS)}
