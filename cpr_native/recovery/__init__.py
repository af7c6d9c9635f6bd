"""Recovery manager: saves when due, in the background, and brings a job back after a failure."""

from cpr_native.recovery.ledger import LookupLedger
from cpr_native.recovery.manager import RecoveryManager
from cpr_native.recovery.position import ResumableLoader
from cpr_native.recovery.report import RecoveryReport, SaveReport

__all__ = ["LookupLedger", "RecoveryManager", "RecoveryReport", "ResumableLoader", "SaveReport"]
