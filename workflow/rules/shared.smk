"""Split and train where jobs share a file system with the workflow: they read and write the campaign itself.

In: results/staged, results/shards. Out: results/{shards,outliers,multiplicity,ledgers}, receipts of runs/<run>.
"""


rule split:
    """Turn one staged range into shards, outliers and a balanced ledger, and delete its raw copies."""
    input:
        staged=ready_files("{range}"),
        threshold=chosen_threshold,
        tables=tables_file(),
    output:
        shards=PATHS.shard_manifest("{range}"),
        outliers=PATHS.outlier_manifest("{range}"),
        multiplicity=PATHS.multiplicity("{range}"),
        histogram=PATHS.histogram("{range}"),
        ledger=PATHS.ledger("{range}"),
    log:
        PATHS.results / "logs/split/{range}.log",
    benchmark:
        PATHS.results / "benchmarks/split/{range}.tsv"
    priority: PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.split.cpus
    resources:
        mem_mb=memory_mb("split"),
        runtime=growing_minutes("split"),
    params:
        crpipe=crpipe_command,
    message:
        "Split range {wildcards.range}"
    shell:
        "exec {params.crpipe} split {wildcards.range} > {log:q} 2>&1"


rule train:
    """Train on the ranges of a link, from the checkpoint of the link before; resumes from its last snapshot."""
    input:
        shards=link_shards,
        parent=parent_receipt,
        tables=tables_file(),
    output:
        PATHS.receipt("{link}"),
    log:
        PATHS.run_dir() / "logs/train/{link}.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/train/{link}.tsv"
    wildcard_constraints:
        link=r"\d{7}-\d{7}(\.\d+)?",
    priority: TRAINING_PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.train.cpus
    resources:
        **decisions.node_request(SETTINGS.train.nodes),
        mem_mb=memory_mb("train"),
        runtime=SETTINGS.resources.train.runtime_minutes,
        gres=gpus(SETTINGS.train.gpus),
    params:
        crpipe=training_command,
        options=training_options,
    message:
        "Train on {wildcards.link}"
    shell:
        "exec {params.crpipe} train {wildcards.link} {params.options} > {log:q} 2>&1"


if CAMPAIGN.layout.has_outliers():

    rule train_outliers:
        """Train on the consolidated outliers, from the checkpoint of the last link before."""
        input:
            shards=PATHS.outlier_manifest("consolidated"),
            parent=decisions.parent_of(CAMPAIGN, "outliers"),
            tables=tables_file(),
        output:
            PATHS.receipt("outliers"),
        log:
            PATHS.run_dir() / "logs/train/outliers.log",
        benchmark:
            PATHS.run_dir() / "benchmarks/train/outliers.tsv"
        conda:
            ENVIRONMENT
        threads: SETTINGS.resources.train.cpus
        resources:
            **decisions.node_request(SETTINGS.train.nodes),
            mem_mb=memory_mb("train"),
            runtime=SETTINGS.resources.train.runtime_minutes,
            gres=gpus(SETTINGS.train.gpus),
        params:
            crpipe=training_command,
            deadline=deadline,
        message:
            "Train on the outliers"
        shell:
            "exec {params.crpipe} train outliers {params.deadline} > {log:q} 2>&1"
