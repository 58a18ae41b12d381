"""Where fetched models are kept."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return HEADSTART_CACHE_DIR, or the user's cache folder."""
    named = os.environ.get("HEADSTART_CACHE_DIR")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("headstart")
