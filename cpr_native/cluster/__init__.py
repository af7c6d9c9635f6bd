"""A cluster of shards: the protocol, the process that holds one shard, cuts and commits. No torch here."""
