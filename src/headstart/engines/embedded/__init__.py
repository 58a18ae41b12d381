"""The engine that comes with headstart: llama-architecture models on a CPU, its own KV pool."""
