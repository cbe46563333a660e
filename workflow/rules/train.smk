"""The chain: range after range, then the outliers; and how good the result is.

In: results/{shards,outliers}. Out: runs/<run>/ranges (receipts; the checkpoints stand undeclared in store/)
and runs/<run>/evaluation.
"""


localrules:
    train_all,
    evaluation,
    progress,


rule train:
    """Train on one range, from the checkpoint of the range before; resumes from its own last snapshot."""
    input:
        shards=PATHS.shard_manifest("{range}"),
        parent=parent_receipt,
    output:
        PATHS.receipt("{range}"),
    log:
        PATHS.run_dir() / "logs/train/{range}.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/train/{range}.tsv"
    threads: SETTINGS.resources.train.cpus
    resources:
        **several_nodes(),
        mem_mb=memory_mb("train"),
        runtime=SETTINGS.resources.train.runtime_minutes,
        gres=gpus(SETTINGS.train.gpus),
    params:
        crpipe=trainer(),
        deadline=deadline,
    message:
        "Train on range {wildcards.range}"
    shell:
        "exec {params.crpipe} train {wildcards.range} {params.deadline} > {log} 2>&1"


rule train_outliers:
    """Train on the consolidated outliers, from the checkpoint of the last range."""
    input:
        shards=PATHS.outlier_manifest("consolidated"),
        parent=PATHS.receipt(RANGES[-1]),
    output:
        PATHS.receipt("outliers"),
    log:
        PATHS.run_dir() / "logs/train/outliers.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/train/outliers.tsv"
    threads: SETTINGS.resources.train.cpus
    resources:
        **several_nodes(),
        mem_mb=memory_mb("train"),
        runtime=SETTINGS.resources.train.runtime_minutes,
        gres=gpus(SETTINGS.train.gpus),
    params:
        crpipe=trainer(),
        deadline=deadline,
    message:
        "Train on the outliers"
    shell:
        "exec {params.crpipe} train outliers {params.deadline} > {log} 2>&1"


rule train_all:
    """Train on every range."""
    input:
        [PATHS.receipt(name) for name in RANGES],


rule evaluate:
    """Compare what the checkpoint of one link generates with the validation events."""
    input:
        receipt=PATHS.receipt("{link}"),
    output:
        PATHS.evaluation("{link}") / "metrics.json",
    log:
        PATHS.run_dir() / "logs/evaluate/{link}.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/evaluate/{link}.tsv"
    threads: SETTINGS.resources.evaluate.cpus
    resources:
        mem_mb=memory_mb("evaluate"),
        runtime=growing_minutes("evaluate"),
        gres=gpus(min(SETTINGS.train.gpus, 1)),
    params:
        crpipe=COMMAND,
    message:
        "Evaluate the checkpoint of {wildcards.link}"
    shell:
        "exec {params.crpipe} evaluate {wildcards.link} > {log} 2>&1"


rule evaluation:
    """Evaluate the final checkpoint."""
    input:
        PATHS.evaluation("outliers") / "metrics.json",


rule progress:
    """Evaluate the checkpoint of every link, and draw how good the generator got over the chain."""
    input:
        [PATHS.evaluation(name) / "metrics.json" for name in [*RANGES, "outliers"]],
    output:
        PATHS.figures() / "progress.svg",
    log:
        PATHS.run_dir() / "logs/progress.log",
    params:
        crpipe=COMMAND,
    message:
        "Draw the evaluations of the whole chain"
    shell:
        "exec {params.crpipe} figures --progress > {log} 2>&1"
