"""Tracking of torch's own embedding modules: the model keeps its layers and its torch optimizers."""

from __future__ import annotations

from cpr_native.attachment._attach import attach, attachments_of
from cpr_native.attachment.attachment import Attachment

__all__ = ["Attachment", "attach", "attachments_of"]
