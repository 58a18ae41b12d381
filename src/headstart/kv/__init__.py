"""Block pool, block hashes and eviction, shared by the embedded engine and the simulator."""
