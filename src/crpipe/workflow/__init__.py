"""What the Snakemake workflow decides, as functions of plain values: nothing here imports Snakemake."""
