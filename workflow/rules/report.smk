"""Figures of the report (snakemake --report), each with a caption.

In: results/multiplicity, runs/<run>/{store,evaluation}. Out: runs/<run>/figures.
"""


report: "../report/workflow.rst"


localrules:
    figures,
    gallery,


rule figures:
    """Draw multiplicities, losses, throughput and gradient norms of the whole campaign."""
    input:
        PATHS.receipt("outliers"),
    output:
        report(
            PATHS.figures() / "multiplicity.svg",
            caption="../report/multiplicity.rst",
            category="Data",
        ),
        report(
            PATHS.figures() / "losses.svg",
            caption="../report/losses.rst",
            category="Training",
        ),
        report(
            PATHS.figures() / "gradients.svg",
            caption="../report/gradients.rst",
            category="Training",
        ),
        report(
            PATHS.figures() / "throughput.svg",
            caption="../report/throughput.rst",
            category="Training",
        ),
    log:
        PATHS.run_dir() / "logs/figures.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/figures.tsv"
    params:
        crpipe=COMMAND,
    message:
        "Draw the figures of the campaign"
    shell:
        "exec {params.crpipe} figures > {log} 2>&1"


rule gallery:
    """Gather the figures of the final evaluation; which ones there are is the workload's business."""
    input:
        metrics=PATHS.evaluation("outliers") / "metrics.json",
    output:
        report(
            directory(PATHS.figures() / "evaluation"),
            patterns=["{figure}.svg"],
            caption="../report/evaluation.rst",
            category="Evaluation",
            labels={"figure": "{figure}"},
        ),
    log:
        PATHS.run_dir() / "logs/gallery.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/gallery.tsv"
    message:
        "Gather the figures of the evaluation"
    shell:
        "(rm -rf {output}.part && mkdir -p {output}.part"
        ' && cp "$(dirname {input.metrics})"/*.svg {output}.part'
        " && mv {output}.part {output}) > {log} 2>&1"
