"""The verbs that are disturbed by single faults, in an order in which each finds what it needs."""

import shutil

from runs import RANGES, REPOSITORY, TINY

FIRST, SECOND = RANGES[:2]
CHOSEN = ("--checkpoint", "latest", "--device", "cpu")
QUANTILE = ("--set", "results=quantile", "--set", "split.quantile=0.9")
CONVERTED = ("--set", "results=converted", "--set", "source.convert=cp {in} {out}")
COUNTED = ("--set", "results=counted", "--set", "ranges.last=auto")
ENERGIES = "energy_gev=1e6,zenith_rad=0.5,mass_number=1,depth_m=1500"

# Name, words. A verb that is named twice is disturbed at its first call; `-` only prepares.
STEPS = (
    ("init", ("init", "fresh", "--yes", "--uri", "synthetic://", "--workload", "muons")),
    ("doctor", ("doctor", "--json")),
    ("config check", ("config", "check")),
    ("simulate", ("simulate", FIRST, "--out", "simulated", "--config", "simulated.yaml")),
    ("plan", ("plan", "--json")),
    ("inspect", ("inspect", f"raw/{FIRST}/bundles-0000000.parquet")),
    ("count", ("count", *COUNTED)),
    ("tables", ("tables",)),
    ("list", ("list", FIRST)),
    ("-", ("list", SECOND)),
    ("stage", ("stage", FIRST)),
    ("-", ("stage", SECOND)),
    ("-", ("tables", *QUANTILE)),
    ("-", ("list", FIRST, *QUANTILE)),
    ("-", ("stage", FIRST, *QUANTILE)),
    ("threshold", ("threshold", *QUANTILE)),
    ("-", ("tables", *CONVERTED)),
    ("-", ("list", FIRST, *CONVERTED)),
    ("-", ("stage", FIRST, *CONVERTED)),
    ("convert", ("convert", FIRST, *CONVERTED)),
    ("split", ("split", FIRST)),
    ("split again", ("split", FIRST)),
    ("-", ("split", SECOND)),
    ("consolidate", ("consolidate",)),
    ("check a range", ("check", FIRST)),
    ("export --events", ("export", "--events", FIRST, "--out", "plain")),
    ("plan --probe", ("plan", "--probe", "--steps", "2")),
    ("train", ("train", FIRST)),
    ("train again", ("train", FIRST)),
    ("train from a parent", ("train", SECOND)),
    ("train on outliers", ("train", "outliers")),
    ("evaluate", ("evaluate", "outliers")),
    ("predict", ("predict", *CHOSEN, "--in", f"raw/{FIRST}/bundles-0000000.parquet", "--out", "out.parquet")),
    ("generate", ("generate", *CHOSEN, "--event", ENERGIES, "--out", "events.parquet")),
    ("export", ("export", "--checkpoint", "latest", "--out", "exported")),
    ("figures", ("figures",)),
    ("status", ("status",)),
    ("status --html", ("status", "--html", "status.html")),
    ("summary", ("summary",)),
    ("report", ("report", "--out", "report.html")),
    ("notify", ("notify", "stall")),
    ("check", ("check",)),
    ("fork", ("fork", "--from", FIRST, "--run", "forked", "--out", "forked.yaml")),
    ("compare", ("compare", "tiny", "tiny")),
    ("sync", ("sync",)),
    ("sync --from", ("sync", "--from", "copy", "--set", "runs=restored")),
    ("clean", ("clean", "--yes")),
)
# How often in a sample, where not 10: those that take seconds are tried less often.
WEIGHTS = {"evaluate": 0.1, "export": 1, "figures": 1}
WEIGHTS |= dict.fromkeys(("train", "train from a parent", "train on outliers"), 3) | {"plan --probe": 0.3}
# In every sample: verb, kind of operation, end of its path, which time, errno.
ALWAYS = (
    ("config check", "open", "crpipe.yaml", 1, "ENOENT"),
    ("config check", "open", "crpipe.yaml", 1, "EACCES"),
    ("inspect", "stat", ".parquet", 2, "EIO"),
    ("inspect", "closeread", ".parquet", 1, "EIO"),
    ("split again", "open", ".finished/ledger.json", 1, "ENOENT"),
    ("check a range", "open", ".parquet", 1, "ENOENT"),
    ("export --events", "open", ".parquet", 1, "ENOENT"),
    ("plan --probe", "open", "tables.json", 1, "ENOENT"),
    ("check", "open", ".parquet", 1, "EIO"),
    ("predict", "open", "bundles-0000000.parquet", 1, "EIO"),
)
ONCE = frozenset({"init"})  # refuse to do again what they have done
# Verbs without a step, and why.
LEFT_OUT = {
    "ahead": "runs verbs of this list, one after the other",
    "run, scan": "start Snakemake, which starts the verbs above",
    "config default, config schema, config table, steps": "print what is in the package",
    "pack, unpack": "tests/unit/packs damages and kills them; a fault in a write is that of atomic_write",
    "logs": "prints logs of Snakemake's jobs",
    "checksum": "asks a source about one file",
    "token": "reads and writes in the home directory only",
    "tb merge": "reads event files that TensorBoard reads",
}


def write_settings(folder):
    """Write the configuration of a campaign in ``folder``, whose raw files are in it."""
    (folder / "config").mkdir(parents=True)
    shutil.copy(REPOSITORY / "config" / "config.yaml", folder / "config")
    text = (
        TINY.read_text()
        .replace("  last: 5\n", "  last: 3\n")
        .replace("passes_per_link: 6", "passes_per_link: 2")
    )
    simulated = text + "\n"
    begin, end = text.index("source:\n"), text.index("\nranges:") + 1
    source = (
        f"source:\n  uri: file://{folder}/raw/{{range}}/*.parquet\n  tables:\n    geometry: geometry.csv\n"
        "  deadline_minutes: 0.1\n\n"
    )
    (folder / "simulated.yaml").write_text(simulated)
    (folder / "crpipe.yaml").write_text(f"{text[:begin]}{source}{text[end:]}\nsync:\n  to: {folder}/copy\n")
    (folder / "geometry.csv").write_text("channel,x_m\n0,1.5\n")
    (folder / "copy").mkdir()
