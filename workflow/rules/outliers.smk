"""Events above the threshold: merged into shards of their own, and trained on last.

In: results/outliers. Out: results/outliers/consolidated and the receipt of the last link.
"""


rule outliers_consolidated:
    """Merge the outliers of all ranges into shards of a chosen size."""
    input:
        [PATHS.outlier_manifest(name) for name in RANGES],
    output:
        manifest=PATHS.outlier_manifest("consolidated"),
        index=PATHS.outliers("consolidated") / "index.parquet",
    log:
        PATHS.results / "logs/consolidate.log",
    benchmark:
        PATHS.results / "benchmarks/consolidate.tsv"
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.split.cpus
    resources:
        mem_mb=memory_mb("split"),
        runtime=growing_minutes("split"),
    params:
        crpipe=crpipe_command,
    message:
        "Consolidate the outliers of all ranges"
    shell:
        "exec {params.crpipe} consolidate > {log:q} 2>&1"


rule train_outliers:
    """Train on the consolidated outliers, from the checkpoint of the last link before."""
    input:
        shards=PATHS.outlier_manifest("consolidated"),
        parent=parent_of(CAMPAIGN, "outliers"),
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
        **node_request(SETTINGS.train.nodes),
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
