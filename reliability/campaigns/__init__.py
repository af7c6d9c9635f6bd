"""Campaigns against the checkpoint directory: each module has `run(...) -> dict` of counts, and a command."""
