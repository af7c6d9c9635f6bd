"""The workloads of the SCAR paper, trained with priority checkpoints: `cd examples && python -m scar.mlr`."""
