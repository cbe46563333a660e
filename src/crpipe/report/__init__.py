"""Report: metrics, figures, status and pages, from files only."""
