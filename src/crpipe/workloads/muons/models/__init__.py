"""Networks and losses of the muon generators."""
