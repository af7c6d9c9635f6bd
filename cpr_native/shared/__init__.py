"""Memory of tables that outlives the training process, and the process that can hold it."""

from cpr_native.shared.memory import SharedMemory, current

__all__ = ["SharedMemory", "current"]
