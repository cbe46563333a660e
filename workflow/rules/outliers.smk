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
