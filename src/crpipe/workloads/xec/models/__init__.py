"""Networks and what they learn."""
