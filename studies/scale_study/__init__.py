"""Full and partial recovery by the number of shards, at the costs measured on a cluster."""
