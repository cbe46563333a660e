"""Where Snakemake looks for a workflow; this one is in workflow/."""


include: "workflow/Snakefile"


# Snakemake takes no default target from an included file.
workflow.default_target = "all"
