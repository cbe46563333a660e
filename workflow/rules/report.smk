"""Figures of the report (snakemake --report), each with a caption.

In: results/multiplicity, runs/<run>/{store,evaluation}. Out: runs/<run>/figures.
"""

# Each with its category in the report.
FIGURES = {
    "multiplicity": "Data",
    "losses": "Training",
    "gradients": "Training",
    "throughput": "Training",
}


report: "../report/workflow.rst"


localrules:
    figures,
    gallery,


rule figures:
    """Plot multiplicities, losses, throughput and gradient norms of the whole campaign."""
    input:
        PATHS.receipt(LINKS[-1]),
    output:
        [
            report(
                PATHS.figures() / f"{name}.svg",
                caption=f"../report/{name}.rst",
                category=category,
            )
            for name, category in FIGURES.items()
        ],
        [PATHS.figures() / f"{name}{suffix}" for name in FIGURES for suffix in COPIES],
    log:
        PATHS.run_dir() / "logs/figures.log",
    benchmark:
        PATHS.run_dir() / "benchmarks/figures.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        crpipe=crpipe_command,
    message:
        "Plot the figures of the campaign"
    shell:
        "exec {params.crpipe} figures > {log:q} 2>&1"


rule gallery:
    """Gather the figures of the final evaluation; the workload decides which there are, or that there are none."""
    input:
        metrics=PATHS.evaluation(LINKS[-1]) / "metrics.json",
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
    conda:
        ENVIRONMENT
    resources:
        mem_mb=LOCAL_MB,
        runtime=LOCAL_MINUTES,
    params:
        folder=PATHS.evaluation(LINKS[-1]),
    message:
        "Gather the figures of the evaluation"
    shell:
        "exec python -m crpipe.report.gallery {params.folder:q} {output:q} > {log:q} 2>&1"
