"""Runs five tiny campaigns with all verbs, and writes what a change of the code's shape must not change.

python yardstick.py FOLDER: the folder takes the campaigns, and two texts in the form of those beside this
file: products.txt (the sha256 of everything that the verbs make) and words.txt (what they print, and how they
refuse).
The code is that of PYTHONPATH, so that two commits can be compared on one machine.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import platform
import re
import shutil
import socket
import sys
from pathlib import Path

import pyarrow.parquet
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(HERE.parent / each) for each in ("support", "outside", "outside/packages")]
# Files that hold times, processes or hosts: they differ from run to run.
_PASSING = (
    "journal.jsonl",
    "metrics.jsonl",
    ".proofs.jsonl",
    "lease",
    "report.html",
    ".sync.json",
    "campaign.svg",
)
_PASSING_STEMS = ("throughput",)
_PASSING_SUFFIXES = (".log", ".part")
_MEASURED = (
    "seconds|hours|time|per_second|free|disk|budget|pid|left|usage|memory|training|data|raw|more_at_peak"
)
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( UTC|Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DAY"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}\b"), "HOST"),
    (re.compile(rf"(\"(?:[a-z_]*(?:{_MEASURED})[a-z_]*|[a-z_]+_s)\": )[\d.e+-]+"), r"\1NUMBER"),
    (re.compile(r"^\w+ +\d+%  .*\n", re.MULTILINE), ""),
    (re.compile(r"(\(\w+/\w+\.py, line )\d+"), r"\1NUMBER"),
    (re.compile(r"about [^,]+ of training, at [\d,.]+ events/s"), "about LONG at RATE"),
    (re.compile(r"\d+(\.\d+)? ?(seconds|minutes|hours|[kMGT]iB free|s\b)"), "LONG"),
)  # fmt: skip
MACHINE = f"python {sys.version_info.major}.{sys.version_info.minor} {platform.machine()} numerics"
# As processors with AVX2 compute, where one can do more: most machines then have the same bytes.
COMMON = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
SURROUNDINGS = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
CHOSEN = "--checkpoint latest"
SMALL = {"threads": 1, "device": "cpu", "log_steps": 1, "snapshot_steps": 4}


def small(name, **changes):
    """Return a demo's settings, made smaller."""
    settings = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    return settings | {"run": "tiny", "results": "results"}


def muons():
    """Outliers, validation, a monitor, two passes."""
    settings = yaml.safe_load((ROOT / "tests" / "integration" / "tiny.yaml").read_text())
    settings["ranges"]["last"] = 3
    del settings["evaluate"]["formats"]
    settings["train"] |= {"passes": 2, "passes_per_link": 2, "validate_every": 4, "monitor": "critic/loss"}
    settings["split"] |= {"test_fraction": 0.1, "histograms": {"energy_gev": [1e4, 1e7, 6]}}
    return settings


def muons_hdf5():
    """Raw files of the converter, chosen by number."""
    from raw_files import write_hdf5

    Path("raw").mkdir()
    for number in range(4):
        path = Path("raw") / f"{number:07}.h5"
        write_hdf5(path, [3, 0, 70, 1, 12, 5, 5, 0, 90, 2] * 6, seed=number)
        os.utime(path, (1.7e9, 1.7e9))
    settings = muons()
    settings["source"] = {
        "uri": "raw/{number:07}.h5",
        "reader": "crpipe.workloads.muons.reading.hdf5:BundlesHdf5",
    }
    del settings["simulator"], settings["split"]["histograms"]
    settings["train"] |= {"passes": 1, "monitor": "", "validate_every": 0}
    return settings


def direction():
    """Sensors of an event in order, rotations, a one-cycle learning rate."""
    return small(
        "direction-demo",
        simulator={"events_per_file": 150},
        ranges={"first": 1, "last": 2},
        train={**SMALL, "passes_per_link": 1, "validate_every": 4},
        model={"width": 16, "layers": 1, "feedforward": 16},
        evaluate={"events": 200},
    )


def xenon():
    """Events of a fixed size, tasks with weights."""
    return small(
        "xec-demo",
        simulator={"events_per_file": 60},
        ranges={"first": 1, "last": 2},
        train={**SMALL, "passes_per_link": 1, "validate_every": 2},
        load={"batch_size": 16, "max_items": 76160},
        evaluate={"events": 100, "batch_events": 20},
    )


def outside():
    """A workload of somebody else, with side tables and options of its reader."""
    from hitlab.data import write_files
    from lab import HITS

    write_files("raw", 4)
    for path in Path("raw").iterdir():
        os.utime(path, (1.7e9, 1.7e9))
    training, evaluation = (
        HITS["train"] | {"passes_per_link": 2},
        HITS["evaluate"] | {"formats": ["png", "pdf"]},
    )
    return HITS | {"run": "tiny", "train": training, "evaluate": evaluation}


CAMPAIGNS = {each.__name__: each for each in (muons, muons_hdf5, direction, xenon, outside)}
# After the training: what a checkpoint is used for, and what looks at the whole.
ONE_EVENT = "energy_gev=1e6,zenith_rad=0.5,mass_number=1,depth_m=1500"
USES = {
    "muons": (f"generate --event {ONE_EVENT} --out events.parquet {CHOSEN}",),
    "muons_hdf5": (),
    "direction": (f"predict --in {{raw}} --out predicted.parquet {CHOSEN}",),
    "xenon": (f"predict --in {{raw}} --out predicted.parquet {CHOSEN}",),
    "outside": (),
}
WHOLE = (
    "figures",
    "summary --json",
    "status --json",
    "plan --json",
    "check",
    "export --events {range} --out plain",
)

# A verb, or a value, that is wrong; each in the folder of the first campaign when it is finished.
WRONG = """
nothing
trian all
train
train 0000000-0000009
train outlierss
train --no-such-option
list 12-10
list all
stage 0000004-0000005
split 0000000-0000002
evaluate 0000000
evaluate 0000000-0000001 --checkpoint none
export --out x
export --checkpoint none --out x
export --checkpoint latest --out results
predict --checkpoint latest --in none.parquet --out x.parquet
predict --checkpoint latest --in crpipe.yaml --out x.parquet
generate --checkpoint latest --out x.parquet
generate --checkpoint latest --event energy_gev=1 --out x.parquet
generate --checkpoint latest --event nothing=1 --out x.parquet
generate --checkpoint latest --in none.parquet --out x.parquet
inspect
inspect none.parquet
inspect results
inspect crpipe.yaml
outliers suggest none
shards verify 0000009-0000009
export --events 0000000-0000001
threshold
compare tiny
compare tiny none
fork --from none --run other --out other.yaml
fork --from 0000000-0000001 --run tiny --out other.yaml
init . --workload none
init . --uri raw/none.parquet --yes
logs none
notify nothing
sync --from none
clean --keep x
sync
token
tb merge --dst x --src none
run --links 0
status --every
simulate 0000000 --out x
config tabel
check 0000009
check --export none
report --out none/report.html
plan --config none.yaml
plan --set split.treshold=3
plan --set split.outlier_above=-1
plan --set split.outlier_above=many
plan --set split=3
plan --set nothing
plan --set source.reader=none:None
plan --set train.workload=crpipe.workloads.muons:None
plan --set ranges.last=x
plan --set ranges.size=0
plan --set train.device=tpu
plan --set model.none=1
plan --set train.optimizer=none
plan --set split.validation_fraction=2
train 0000000-0000001 --set seed=7
split 0000000-0000001 --set split.outlier_above=41
"""


def main(folder):
    """Run all campaigns; write both texts."""
    os.environ.update(SURROUNDINGS)
    import_everything()
    folder = folder.resolve()
    products, words = [f"{MACHINE} {fingerprint()}"], []
    for name, settings in CAMPAIGNS.items():
        place = folder / name
        place.mkdir(parents=True)
        done = Verbs(place, folder / f"{name}.output")
        campaign(name, done, settings)
        words += done.words
        products += [f"{digest} {name}/{path}" for path, digest in hashes(place)]
    done = Verbs(folder / "muons", folder / "wrong.output")
    for line in WRONG.strip().splitlines():
        done(line, code=None)
    for verb in (HERE.parent / "unit" / "frozen" / "verbs.txt").read_text().splitlines():
        done(
            " ".join([*re.match(r"(config|tb)? ?\S+", verb)[0].split(), "--help"]),
            told=hashed,
        )
    for verb in ("config default", "config schema", "config table"):
        done(verb, told=hashed)
    (folder / "products.txt").write_text("\n".join([*products, ""]))
    (folder / "words.txt").write_text("\n".join([*words, *done.words, ""]))


def campaign(name, verb, settings):
    """Make one campaign from its raw files to its report."""
    (verb.place / "config").mkdir()
    shutil.copy(ROOT / "config" / "config.yaml", verb.place / "config")
    with contextlib.chdir(verb.place):
        Path("crpipe.yaml").write_text(yaml.safe_dump(settings(), sort_keys=False))
    rows = json.loads(verb("status --json --all", told=None))["ranges"]
    ranges = [each["name"] for each in rows if each["name"] != "outliers"]
    verb("tables", told=None)
    for each in ranges:
        for one in ("list", "stage", "split"):
            verb(f"{one} {each}", told=None)
    verb("consolidate", told=None)
    links = [each["name"] for each in json.loads(verb("status --json --all", told=None))["links"]]
    for link in links:
        verb(f"train {link}", told=None)
    verb(f"evaluate {links[-1]}", told=None)
    if "{raw}" in "".join(USES[name]):
        verb("simulate 1 --out raw", told=None)
    raw = next(iter(sorted(verb.place.glob("raw/*"))), verb.place).relative_to(verb.place)
    for line in (*USES[name], f"export --out exported {CHOSEN}"):
        verb(line.format(raw=raw), told=None)
    for line in WHOLE:
        verb(line.format(range=ranges[0]), told=str if name == "muons" else hashed)


class Verbs:
    """Runs verbs in forks, and keeps what they print."""

    def __init__(self, place, output):
        self.place, self.output, self.words = place, output, []

    def __call__(self, line, *, code=0, told=str):
        """Run a verb, which must end with ``code``; return its output. told: what to keep of it."""
        sys.stdout.flush()
        child = os.fork()
        if not child:
            self._be(line.split())
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output = self.output.read_text()
        if code is not None and ended != code:
            raise SystemExit(f"{self.place.name}: {line}: exit code {ended}: {output}")
        if told:
            shown = told(masked(output, self.place)).rstrip()
            self.words += [f"$ {self.place.name}: {line}", shown, f"= {ended}", ""]
        return output

    def _be(self, words):
        code = 70
        try:
            handle = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.chdir(self.place)
            code = verb_main(words)
            sys.stdout.flush()
        finally:
            os._exit(code)


def verb_main(words):
    """Run the command ``crpipe`` in this process; return its exit code."""
    from crpipe.__main__ import main as crpipe

    sys.argv = ["crpipe", *words]
    try:
        crpipe()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def masked(text, place):
    """Replace what differs from run to run."""
    text = text.replace(str(place.parent), "FOLDER").replace(str(ROOT), "ROOT")
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def hashed(text):
    """Return the hash of a long text, in its place."""
    return hashlib.sha256(text.encode()).hexdigest()


def hashes(place):
    """Return each product, by its path, and its hash."""
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        passing = path.name in _PASSING or path.stem in _PASSING_STEMS or path.suffix in _PASSING_SUFFIXES
        if path.is_file() and not passing and "tensorboard" not in name:
            yield name, hashlib.sha256(without_folder(path, place)).hexdigest()


def without_folder(path, place):
    """Read a product; a table of raw files, with addresses without the folder, and without inodes."""
    table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else None
    if table is None or "uri" not in table.column_names:
        return path.read_bytes()
    addresses = [masked(str(each), place) for each in table["uri"]]
    table = table.drop_columns("uri").append_column("uri", [addresses])
    rows = [each | dict.fromkeys({"inode", "ctime"} & {*each}) for each in table.to_pylist()]
    return repr((table.schema, rows)).encode()


def fingerprint():
    """Hash how this machine computes."""
    import torch

    from crpipe.train.numerics import numerics
    from crpipe.train.ranks import World

    torch.set_num_threads(1)
    found = numerics(World(0, 1, torch.device("cpu")))
    return hashed(json.dumps(found, sort_keys=True))[:16]


def import_everything():
    """Import what any verb would: the forks share it."""
    for name in ("torch", "matplotlib.pyplot", "h5py", "uproot", "onnx", "pyarrow.dataset"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import crpipe

    for module in pkgutil.walk_packages(crpipe.__path__, "crpipe."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def compute_as_others():
    """Start again with the settings above, which libraries read at their import."""
    if " avx2 " in Path("/proc/cpuinfo").read_text() and not {*COMMON.items()} <= {*os.environ.items()}:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **COMMON})


if __name__ == "__main__":
    compute_as_others()
    main(Path(sys.argv[1]))
