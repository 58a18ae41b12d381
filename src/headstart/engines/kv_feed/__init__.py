"""Feeds the index with the KV events of the engines; the only reader of their event streams."""
