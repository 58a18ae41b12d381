"""Engines' tokenizers on our side: loaded from a model's files, and compared with the engine's."""
