"""Shared by the rules (configuration, who waits for whom, what jobs ask for).

Decisions are functions of plain values in crpipe.workflow; here they get what only Snakemake knows.
"""

import atexit
import contextlib
import gc
import logging
import os
import sys
from pathlib import Path

from snakemake.dag import DAG
from snakemake.io import IOFile, _IOFile
from snakemake.path_modifier import PathModifier
from snakemake.rules import Rule

from crpipe.campaign.campaign import Campaign
from crpipe.setup.compatibility import check_data
from crpipe.cli.terminal import Terminal
from crpipe.campaign import claims
from crpipe.config.files import config_files, relative
from crpipe.config.loading import load_config
from crpipe.config.yaml_text import read_yaml
from crpipe.core.errors import CrpipeError
from crpipe.core.causes import MachineWatch
from crpipe.source.counting import check_source, ensure_counted
from crpipe.source.uris import WRITABLE
from crpipe.workflow import rules as decisions
from crpipe.workflow.ahead import has_few_files, is_left
from crpipe.workflow.monitor import RUN
from crpipe.workflow.outdated import outdated

# A plan of thousands of jobs is a million objects that live to the end: looking for garbage among them again and
# again takes a quarter of the time.
gc.set_threshold(50_000, 20, 20)
atexit.register(gc.freeze)  # nor at the end
# A log on a full disk needs no traceback for each line.
logging.raiseExceptions = False

SCRIPTS = Path(str(workflow.current_basedir)).parent / "scripts"
# Only named where somebody asks for it: Snakemake looks it up for each of thousands of jobs.
SOFTWARE_OPTIONS = (
    "--lint",
    "--archive",
    "--containerize",
    "--report",
    "--list-conda-envs",
)
LOOKS_FOR_SOFTWARE = workflow.deployment_settings.deployment_method or any(
    word.startswith(("--conda", *SOFTWARE_OPTIONS)) for word in sys.argv
)
ENVIRONMENT = "../envs/crpipe.yaml" if LOOKS_FOR_SOFTWARE else None
# Each figure is also written for papers and talks, and as a table of its numbers.
COPIES = (".png", ".pdf", ".csv")
# Where packs go between the machines; empty without --default-storage-provider.
STORAGE = (
    (workflow.storage_settings.default_storage_prefix or "").rstrip("/")
    if workflow.storage_settings.default_storage_provider
    else ""
)
SPENT = ".spent"  # ends the mark of a pack that was of no use
# What a job asks for that runs beside the workflow itself.
LOCAL_MB, LOCAL_MINUTES = 500, 60


# --- configuration ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def refusing():
    """End with an error's own message and exit code: a wrong key, or a failing disk, needs no traceback."""
    try:
        with MachineWatch():
            yield
    except CrpipeError as error:
        RUN.refuse(error)
        sys.exit(error.exit_code)


def checked_campaign(files, changes):
    """Validate the configuration, and compare it with the one this campaign began with, before any job."""
    with refusing():
        settings = load_config(files, changes)
        if settings.packs and not workflow.is_main_process:  # a node has its pack alone
            return Campaign.open(settings)
        check_source(settings)
        campaign = Campaign.open(settings)
        check_data(campaign)
        ensure_counted(campaign, Terminal())
        claims.check_data(campaign)
        claims.check_train(campaign)
    return campaign


def prepare_environment():
    """Set the variables with which jobs find crpipe beside this Python, and stop when the workflow's process dies.

    Every job of every executor gets this: Slurm's get the head's environment, a job's own Snakemake reads this.
    """
    path = decisions.search_path(sys.executable, os.get_exec_path())
    head = str(os.getpid())
    os.environ.update(
        decisions.allocator_settings(os.environ), PATH=path, CRPIPE_WORKFLOW=head
    )


def ignore_file_times():
    """Treat what exists as finished, whatever the times of files say, for every way of calling Snakemake.

    Archives, copies, purge policies and clocks that were ahead change times. Snakemake would make finished products
    again, whichever triggers it is given, and delete those of a job that is "older" than its inputs. What did change
    is found by records and hashes: those of the jobs, and `outdated` before any job.
    """

    async def never(*_, **__):
        return False

    _IOFile.is_newer = never
    DAG.check_output_mtime = never


def rerun_jobs(files):
    """Rerun the jobs of ``files``, and what depends on them, where Snakemake's targets need them.

    A target that is a file of no link or range of this campaign is refused before anything is planned.
    """
    names, plan = set(map(str, files)), DAG.init

    async def init(dag, *words, **options):
        with refusing():
            decisions.check_files(CAMPAIGN, map(str, dag.targetfiles))
            may = may_work_ahead()
        if may:
            work_ahead()
        dag.forcefiles.update(names)
        await plan(dag, *words, **options)
        if EXECUTES:
            begin_or_end(dag)

    DAG.init = init


def keep_campaign_here():
    """Let packs, and logs of nodes, alone go through the storage of ``--default-storage-provider``."""
    store = PathModifier.apply_default_storage

    def store_packs(modifier, path):
        travels = str(path).endswith(".tar") or "/logs/node/" in str(path)
        return store(modifier, path) if travels else path

    PathModifier.apply_default_storage = store_packs


def tell_nodes_the_ranges():
    """Give nodes the counted number in place of ``ranges.last: auto``, and the ranges that are left out.

    They have no records, and maybe no source.
    """
    left_out = [*SETTINGS.ranges.skip, *SETTINGS.given_up()]
    ranges = decisions.one_line(
        {**config.get("ranges", {}), "last": SETTINGS.last_file(), "skip": left_out}
    )
    given = workflow.config_settings.config_args or []
    workflow.config_settings.config_args = [*given, f"ranges={ranges}"]


ignore_file_times()

# Files of --configfile, else of CRPIPE_CONFIG, else crpipe.yaml; each over config/config.yaml.
# Snakemake refuses a file without keys, and does not name one that is no YAML.
with refusing():
    NAMED = relative(config_files(workflow.overwrite_configfiles), Path.cwd())
    FILES = [file for file in NAMED if read_yaml(file)]
for file in FILES:

    configfile: file


# Jobs of a cluster read the workflow again: they get the files by name, whatever their environment holds.
workflow.config_settings.configfiles = [file.absolute() for file in FILES]
with refusing():
    CHANGES = decisions.overrides(FILES, config)
CAMPAIGN = checked_campaign(FILES, CHANGES)
SETTINGS = CAMPAIGN.config
PATHS = CAMPAIGN.paths
RANGES = CAMPAIGN.ranges
LINKS = CAMPAIGN.chain.names
if SETTINGS.packs:
    keep_campaign_here()
    if workflow.is_main_process and (
        SETTINGS.ranges.last == "auto" or SETTINGS.given_up()
    ):
        tell_nodes_the_ranges()
OUTDATED = outdated(CAMPAIGN) if workflow.is_main_process else []
if workflow.is_main_process:
    rerun_jobs(OUTDATED)
# Snakemake follows the chain from its end by recursion where nothing led it along the beginning.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + 30 * len(LINKS)))
BULK = [link.name for link in CAMPAIGN.chain.links if link.ranges]
COMMAND = decisions.crpipe_call(FILES, CHANGES)
TRAINER = decisions.training_call(
    COMMAND, SETTINGS.train.nodes, SETTINGS.train.processes_of_node
)


# --- who waits for whom ----------------------------------------------------------------------------------


def asked_for():
    """List the targets of this call."""
    return workflow.dag_settings.until or workflow.dag_settings.targets or {"all"}


def trains():
    """Return whether training is among the targets of this call."""
    return decisions.trains(asked_for(), PATHS.runs)


def may_work_ahead():
    """Return whether one process here may do what it can before any job: of whole targets, and nothing again."""
    asked = workflow.dag_settings
    again = OUTDATED or asked.forcerun or asked.forceall or asked.forcetargets
    parts = asked.until or asked.omit_from or asked.batch or asked.allowed_rules
    executes = workflow.executor_plugin is not None and workflow.local_exec
    looks = workflow.dryrun or workflow.touch or LOOKS_FOR_SOFTWARE
    if again or parts or looks or not executes:
        return False
    return FEW_FILES and is_left(CAMPAIGN, asked_for())


def staging_prerequisites(wildcards):
    """Hold a range back until it is at most look_ahead ranges beyond the link that is trained.

    What a range waits for depends on the target and on look_ahead. Snakemake's memory of it is dropped: otherwise
    a change of either would copy every range again.
    """
    if not workflow.is_main_process:
        return []
    workflow.persistence.cleanup_metadata(IOFile(str(PATHS.staged(wildcards.range))))
    earlier = decisions.staging_prerequisites(
        CAMPAIGN, wildcards.range, training=trains()
    )
    return list(map(str, earlier))


def lower_first(wildcards):
    """Rank the jobs of lower ranges first: training waits for them."""
    return decisions.priority(RANGES, wildcards.range)


# Snakemake of an earlier version takes numbers only; then the order of ranges is its own.
RANKS = hasattr(Rule, "expand_priority")
PRIORITY = lower_first if RANKS else 0
FEW_FILES = workflow.is_main_process and has_few_files(CAMPAIGN)
TRAINING_PRIORITY = decisions.training_priority(RANGES)


def chosen_threshold(wildcards):
    """Name the file with the quantile threshold, if one is asked for."""
    return [] if SETTINGS.split.quantile is None else str(PATHS.threshold())


def link_shards(wildcards):
    """Name the manifests of the shards that a link trains on."""
    return list(map(str, decisions.shards_of(CAMPAIGN, wildcards.link)))


def parent_receipt(wildcards):
    """Name the receipt of the link before, whose checkpoint this link starts from."""
    return list(map(str, decisions.parent_of(CAMPAIGN, wildcards.link)))


def ready_files(name):
    """Name the files that say which raw files of a range can be read."""
    return [
        PATHS.staged(name),
        *([PATHS.converted(name)] if SETTINGS.source.convert else []),
    ]


def tables_file():
    """Name the file that says which side tables were staged, if there are any.

    A changed table is refused by its hash, so a newer file alone is no reason to split or train again.
    """
    return [ancient(PATHS.results / "tables.json")] if CAMPAIGN.has_tables else []


# --- commands --------------------------------------------------------------------------------------------


def as_it_is(text):
    """Keep a text from being formatted: in one with braces, such as raw/{range}, Snakemake finds wildcards."""

    def give(wildcards):
        return text

    # A function is called for each job, a plain text is not.
    return give if set("{}") & set(text) else text


crpipe_command = as_it_is(COMMAND)
training_command = as_it_is(TRAINER)


# --- resources -------------------------------------------------------------------------------------------


def memory_mb(verb):
    """Ask for a verb's configured memory, and for as much more with every retry."""

    def asked(wildcards, attempt):
        return attempt * getattr(SETTINGS.resources, verb).mem_mb

    return asked


def growing_minutes(verb):
    """Ask for a verb's configured run time, and for as much more with every retry: it starts over."""

    def asked(wildcards, attempt):
        return attempt * getattr(SETTINGS.resources, verb).runtime_minutes

    return asked


def gpus(count):
    """Ask for GPUs on each node, of the type that the profile names."""
    profile = workflow.resource_settings.default_resources or {}
    kind = profile["gpu_type"].raw if "gpu_type" in profile else ""
    return decisions.gpu_request(count, kind)


def on_htcondor(verb, gpus=0, **more):
    """Ask HTCondor's plugin, where it is installed, for a job that is nothing but its command on one pack."""
    if "snakemake_executor_plugin_htcondor" not in sys.modules:
        return {}
    asked = {"htcondor_request_mem_mb": memory_mb(verb), **more}
    if gpus:
        asked["request_gpus"] = gpus
    return {"job_wrapper": str(SCRIPTS / "on-node"), **asked}


def training_options(wildcards, resources):
    """Return the options of a training job."""
    first = decisions.probe_option(CAMPAIGN, wildcards.link)
    return " ".join([*first, deadline(wildcards, resources)]).strip()


def deadline(wildcards, resources):
    """Return the options with which a cluster job snapshots and stops before its run time is over."""
    on_cluster = workflow.remote_exec or workflow.non_local_exec
    return decisions.time_limit(resources.runtime) if on_cluster else ""
