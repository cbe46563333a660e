"""What the Snakemake workflow decides, as functions of plain values; and `crpipe run`."""
