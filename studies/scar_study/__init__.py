"""The study of SCAR: what partial recovery costs the paper's workloads; run by `make scar-study`."""
