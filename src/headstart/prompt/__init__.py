"""ASSEMBLY: segments, canonical JSON, chat templates, tokenizers, fingerprints."""
