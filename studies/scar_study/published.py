"""What the paper says, in per cent of the cost of full recovery that is saved."""

from __future__ import annotations

# Qiao et al., ICML 2019 (arXiv 1810.07354): partial recovery with prioritised checkpoints, and partial
# recovery alone, by the share of the parameters that is lost.
PUBLISHED = {
    "priority": [78, 95],
    "traditional": {"0.75": [12, 42], "0.5": [31, 62], "0.25": [59, 89]},
}
