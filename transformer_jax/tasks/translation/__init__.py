"""Translate texts byte by byte: dates in many languages into ISO 8601, or any file of pairs."""
