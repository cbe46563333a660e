"""Packs: links and ranges as files that need nothing but themselves, for machines without a shared disk."""
