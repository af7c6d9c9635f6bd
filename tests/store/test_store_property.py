"""Random histories against a model of what the directory holds; `CPR_STORE_EXAMPLES` makes it a campaign."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from store_machine import COUNTED, StoreMachine

EXAMPLES = int(os.environ.get("CPR_STORE_EXAMPLES", "8"))
CAMPAIGN = "CPR_STORE_EXAMPLES" in os.environ  # draws other histories every time
STEPS = int(os.environ.get("CPR_STORE_STEPS", "14"))


def test_any_history_restores_what_was_saved() -> None:
    before = COUNTED["operations"]
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not CAMPAIGN,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    done = COUNTED["operations"] - before
    print(f"{done} operations")
    assert done >= 2 * EXAMPLES
