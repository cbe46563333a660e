"""Raw files and side tables: list them, copy them verified, or have a simulator make them."""
