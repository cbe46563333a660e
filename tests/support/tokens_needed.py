"""Configurations of sources that may need a token."""

from crpipe.config.loading import validate


def needing(uri, table="", *, token_file="", to=""):
    """Configure a source, a side table of it, and a second place."""
    tables = {"geometry": table} if table else {}
    return validate(
        {"source": {"uri": uri, "tables": tables, "token_file": str(token_file)}, "sync": {"to": to}}
    )
