"""The chain, link after link; and how good the result is.

In: results/shards. Out: runs/<run>/ranges (receipts; the checkpoints are undeclared, in store/) and
runs/<run>/evaluation.
"""


localrules:
    train_all,
    evaluation,
    progress,


rule train_all:
    """Train on every range, in every round."""
    input:
        [PATHS.receipt(name) for name in BULK],


rule evaluate:
    """Compare what the checkpoint of one link predicts with the validation events."""
    input:
        receipt=PATHS.receipt("{link}"),
        tables=tables_file(),
    output:
        metrics=PATHS.evaluation("{link}") / "metrics.json",
        predictions=PATHS.evaluation("{link}") / "predictions.parquet",
    log:
        PATHS.run_dir() / "logs/evaluate/{link}.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/evaluate/{link}.tsv"
    conda:
        ENVIRONMENT
    threads: SETTINGS.resources.evaluate.cpus
    resources:
        mem_mb=memory_mb("evaluate"),
        runtime=growing_minutes("evaluate"),
        gres=gpus(min(SETTINGS.train.gpus, 1)),
    params:
        crpipe=crpipe_command,
    message:
        "Evaluate the checkpoint of {wildcards.link}"
    shell:
        "exec {params.crpipe} evaluate {wildcards.link} > {log:q} 2>&1"


rule evaluation:
    """Evaluate the final checkpoint."""
    input:
        PATHS.evaluation(LINKS[-1]) / "metrics.json",


rule progress:
    """Evaluate the checkpoint of every link, and plot how good the model got over the chain."""
    input:
        [PATHS.evaluation(name) / "metrics.json" for name in LINKS],
    output:
        PATHS.figures() / "progress.svg",
        [PATHS.figures() / f"progress{suffix}" for suffix in COPIES],
    log:
        PATHS.run_dir() / "logs/progress.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/progress.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Plot the evaluations of the whole chain"
    shell:
        "exec {params.crpipe} figures --progress > {log:q} 2>&1"
