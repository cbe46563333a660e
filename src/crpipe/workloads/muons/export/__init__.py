"""Exported muon generators."""
