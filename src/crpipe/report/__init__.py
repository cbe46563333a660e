"""Reports: plan, status, pages, figures and summary of a campaign, from its files only."""
