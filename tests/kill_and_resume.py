"""What a process needs that a test kills."""

# It could leave half of a compiled program in the cache that all tests share: it writes none.
READ_ONLY_CACHE = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": str(2**40)}
