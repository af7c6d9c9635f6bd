"""The command `cpr-native`: demo, emulate, plan, inspect, verify."""

from cpr_native.cli.app import cli, main

__all__ = ["cli", "main"]
