"""Events and items in memory and in shards."""
