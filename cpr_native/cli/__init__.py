"""The command `cpr-native`: compact, demo, emulate, plan, inspect, verify."""

from cpr_native.cli.app import cli, main

__all__ = ["cli", "main"]
