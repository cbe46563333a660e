"""Split and train where no file system is shared: one file goes to a job, one comes back (key packs).

In: the source, results/shards. Out: results/{shards,outliers,multiplicity,ledgers}, receipts of runs/<run>. Every
file of the jobs is declared; all else runs beside the campaign. A storage of --default-storage-provider carries packs.
"""

UNPACK = "exec {params.crpipe} unpack {input:q} --remove"
TRAIN = (
    "crpipe train --pack {input:q} --out {output:q} --state {params.state:q} --deliver"
)
if STORAGE:
    # What is marked is deleted in the storage by the next workflow, and its work is done again.
    UNPACK += " --spent {log:q}{SPENT}"
    TRAIN = (
        "code=85; while [ $code = 85 ]; do code=0; "
        f"{TRAIN} --slice ${{{{CRPIPE_SLICE:-1h}}}} >> {{log:q}} 2>&1 || code=$?; done; exit $code"
    )
else:
    TRAIN = f"exec {TRAIN} > {{log:q}} 2>&1"
UNPACK += " > {log:q} 2>&1"


def delivered(pack):
    """Let a result be deleted in the storage once it is unpacked; HTCondor never brings back what is ``temp``."""
    return temp(pack) if STORAGE else pack


def place_of_state(wildcards, output):
    """Name where the states of a link are between slices: the storage, if crpipe can write there."""
    return (
        f"{STORAGE}/states"
        if STORAGE.partition("://")[0] in WRITABLE
        else f"{output}.state"
    )


localrules:
    stage,
    threshold,
    outliers_consolidated,
    evaluate,
    pack_range,
    unpack_range,
    pack_link,
    unpack_link,


rule pack_range:
    """Write what a job needs to list, copy and split a range."""
    input:
        threshold=chosen_threshold,
        tables=tables_file(),
    output:
        temp(PATHS.range_pack("{range}")),
    log:
        PATHS.results / "logs/pack/{range}.log",
    priority: PRIORITY
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Pack range {wildcards.range}"
    shell:
        "exec {params.crpipe} pack {wildcards.range} --data --out {output:q} > {log:q} 2>&1"


rule split:
    """List, copy and split a range on a machine of its own; the raw files never leave it."""
    input:
        PATHS.range_pack("{range}"),
    output:
        delivered(PATHS.range_pack("{range}", out=True)),
    log:
        PATHS.results / "logs/node/split/{range}.log",
    priority: PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.split.cpus
    resources:
        **on_htcondor("split"),
        mem_mb=memory_mb("split"),
        runtime=growing_minutes("split"),
        staging=1,
    message:
        "List, copy and split range {wildcards.range}"
    shell:
        "exec crpipe split --pack {input:q} --out {output:q} --deliver > {log:q} 2>&1"


rule unpack_range:
    """Put the shards and records of a range into the campaign; a failure of its job is raised here."""
    input:
        PATHS.range_pack("{range}", out=True),
    output:
        shards=PATHS.shard_manifest("{range}"),
        outliers=PATHS.outlier_manifest("{range}"),
        multiplicity=PATHS.multiplicity("{range}"),
        histogram=PATHS.histogram("{range}"),
        ledger=PATHS.ledger("{range}"),
    log:
        PATHS.results / "logs/split/{range}.log",
    priority: PRIORITY
    retries: 0
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Unpack range {wildcards.range}"
    shell:
        UNPACK


rule pack_link:
    """Write everything that the training of a link needs into one file."""
    input:
        shards=link_shards,
        parent=parent_receipt,
        tables=tables_file(),
    output:
        temp(PATHS.pack("{link}")),
    log:
        PATHS.run_dir() / "logs/pack/{link}.log",
    priority: TRAINING_PRIORITY
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Pack link {wildcards.link}"
    shell:
        "exec {params.crpipe} pack {wildcards.link} --out {output:q} > {log:q} 2>&1"


rule train:
    """Train on the ranges of a link, or on the outliers, on a machine that has nothing but the pack."""
    input:
        PATHS.pack("{link}"),
    output:
        delivered(PATHS.pack("{link}", out=True)),
    log:
        PATHS.run_dir() / "logs/node/train/{link}.log",
    priority: TRAINING_PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.train.cpus
    resources:
        # The plugin quotes what other options have: a raw transfer_checkpoint_files would name a file with quotes.
        **on_htcondor(
            "train",
            SETTINGS.train.gpus,
            htcondor_submit_checkpoint_exit_code=85,
            classad_TransferCheckpoint="state.tar",
        ),
        mem_mb=memory_mb("train"),
        runtime=SETTINGS.resources.train.runtime_minutes,
        gres=gpus(SETTINGS.train.gpus),
    params:
        state=place_of_state,
    message:
        "Train on {wildcards.link}"
    shell:
        TRAIN


rule unpack_link:
    """Put the checkpoint and the receipt of a link into the run; a failure of its job is raised here."""
    input:
        PATHS.pack("{link}", out=True),
    output:
        PATHS.receipt("{link}"),
    log:
        PATHS.run_dir() / "logs/train/{link}.log",
    priority: TRAINING_PRIORITY
    retries: 0
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Unpack link {wildcards.link}"
    shell:
        UNPACK


if CAMPAIGN.layout.has_outliers():

    rule train_outliers:
        """Train on the outliers, after every range."""
        input:
            PATHS.receipt("outliers"),
