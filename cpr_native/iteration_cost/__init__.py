"""What a perturbation of training costs in iterations: SCAR's bound, estimates of it, and what follows.

Source: Qiao et al., Fault Tolerance in Iterative-Convergent Machine Learning, ICML 2019 (arXiv 1810.07354).
"""

from __future__ import annotations

from cpr_native.iteration_cost._numbers import Range
from cpr_native.iteration_cost.bounds import Bound, bound
from cpr_native.iteration_cost.choice import Choice, SaveCost, choose
from cpr_native.iteration_cost.contraction import (
    Contraction,
    ContractionEstimator,
    contraction_of_losses,
    contraction_of_steps,
)
from cpr_native.iteration_cost.loop import IterationLoop, IterationLoopState, SaveCostEstimate
from cpr_native.iteration_cost.movement import Movement
from cpr_native.iteration_cost.prediction import Prediction, perturbation_cost, perturbation_norm, predict

__all__ = [
    "Bound",
    "Choice",
    "Contraction",
    "ContractionEstimator",
    "IterationLoop",
    "IterationLoopState",
    "Movement",
    "Prediction",
    "Range",
    "SaveCost",
    "SaveCostEstimate",
    "bound",
    "choose",
    "contraction_of_losses",
    "contraction_of_steps",
    "perturbation_cost",
    "perturbation_norm",
    "predict",
]
