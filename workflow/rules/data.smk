"""From the source to shards: list, stage, (threshold,) split.

In: the ranges of the source. Out: results/{manifests,shards,outliers,multiplicity,ledgers}.
"""


localrules:
    list_range,


rule list_range:
    """List one range of the source."""
    output:
        PATHS.manifest("{range}"),
    log:
        PATHS.results / "logs/list/{range}.log",
    benchmark:
        PATHS.results / "benchmarks/list/{range}.tsv"
    priority: PRIORITY
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "List range {wildcards.range}"
    shell:
        "exec {params.crpipe} list {wildcards.range} > {log:q} 2>&1"


rule stage:
    """Copy one range next to the results, each file verified; a failed job keeps its undeclared raw copies."""
    input:
        manifest=PATHS.manifest("{range}"),
        turn=staging_prerequisites,
    output:
        temp(PATHS.staged("{range}")),
    log:
        PATHS.results / "logs/stage/{range}.log",
    benchmark:
        PATHS.results / "benchmarks/stage/{range}.tsv"
    priority: PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.stage.cpus
    resources:
        mem_mb=memory_mb("stage"),
        runtime=SETTINGS.resources.stage.runtime_minutes,
        disk_mb=10_240,  # of a range; more: --set-resources stage:disk_mb=N
        staging=1,
    params:
        crpipe=crpipe_command,
    message:
        "Stage range {wildcards.range}"
    shell:
        "exec {params.crpipe} stage {wildcards.range} > {log:q} 2>&1"


rule threshold:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    input:
        staged=[ready_files(name) for name in decisions.reference_ranges(CAMPAIGN)],
        tables=tables_file(),
    output:
        PATHS.threshold(),
    log:
        PATHS.results / "logs/threshold.log",
    benchmark:
        PATHS.results / "benchmarks/threshold.tsv"
    priority: TRAINING_PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.split.cpus
    resources:
        mem_mb=memory_mb("split"),
        runtime=growing_minutes("split"),
    params:
        crpipe=crpipe_command,
    message:
        "Choose the outlier threshold"
    shell:
        "exec {params.crpipe} threshold > {log:q} 2>&1"
