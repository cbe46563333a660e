"""The step between stage and split where raw files are of a format that no reader reads (key source.convert).

In: results/staged. Out: results/converted; what was made of the raw copies is beside them.
"""


rule convert:
    """Run source.convert on each file of a range, and read the results whole; a failed job keeps those."""
    input:
        staged=PATHS.staged("{range}"),
        tables=tables_file(),
    output:
        temp(PATHS.converted("{range}")),
    log:
        PATHS.results / "logs/convert/{range}.log",
    benchmark:
        PATHS.results / "benchmarks/convert/{range}.tsv"
    priority: PRIORITY
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.convert.cpus
    resources:
        mem_mb=memory_mb("convert"),
        runtime=SETTINGS.resources.convert.runtime_minutes,
    params:
        crpipe=crpipe_command,
    message:
        "Convert range {wildcards.range}"
    shell:
        "exec {params.crpipe} convert {wildcards.range} > {log:q} 2>&1"
