"""How good generated bundles are."""
