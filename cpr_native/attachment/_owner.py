"""Which attachment a module belongs to."""

from __future__ import annotations

from torch import nn

_NAME = "_cpr_attachment"


class Owner:
    """Keeps an attachment alive with its module; copies, by deepcopy or pickle with it, are of none."""

    def __init__(self, attachment: object = None) -> None:
        self.attachment = attachment

    def __reduce__(self) -> tuple[type[Owner], tuple[()]]:
        return Owner, ()


def own(module: nn.Module, attachment: object) -> None:
    """Make `module` keep `attachment`."""
    module.__dict__[_NAME] = Owner(attachment)


def disown(module: nn.Module) -> None:
    """Undo `own`."""
    module.__dict__.pop(_NAME, None)


def owner_of(module: nn.Module) -> object:
    """The attachment that tracks parameters of `module`, or None."""
    return getattr(module.__dict__.get(_NAME), "attachment", None)
