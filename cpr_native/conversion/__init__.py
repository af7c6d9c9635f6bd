"""Embedding modules of torch and TorchRec become those of this package, in place."""

from __future__ import annotations

from cpr_native.conversion._convert import convert

__all__ = ["convert"]
