"""New campaigns, and a look at the machine they run on."""
