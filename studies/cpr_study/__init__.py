"""The study of CPR: quality, sensitivity, proxies and overhead; run by `make study`."""
