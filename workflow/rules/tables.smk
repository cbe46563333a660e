"""Side tables (geometry, truth, lists of channels), staged once for the whole campaign.

In: source.tables. Out: results/tables.json, which names the copies in results/tables.
"""


localrules:
    tables,


rule tables:
    """Copy the side tables next to the results, each verified and hashed; a failed job keeps its copies."""
    output:
        PATHS.results / "tables.json",
    log:
        PATHS.results / "logs/tables.log",
    benchmark:
        PATHS.results / "benchmarks/tables.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Copy the side tables"
    shell:
        "exec {params.crpipe} tables > {log:q} 2>&1"
