"""Names for values that several rooms pass on and none owns.

Only what crosses rooms lives here. A value that one room makes and others read lives with its
maker (`wire.usage.Usage`, `routing.policy.Decision`, `accounting.record.RequestRecord`).
"""

from typing import NewType

TokenId = NewType("TokenId", int)
"""Index into a model's vocabulary."""

BlockHash = NewType("BlockHash", bytes)
"""16 bytes: the hash of a full block's tokens chained with its parent's hash and the namespace."""

PrefixKey = NewType("PrefixKey", bytes)
"""16 bytes: chained hash over everything in a prompt up to the end of one block."""

JsonObject = dict[str, object]
"""A parsed JSON object whose unknown fields are passed on untouched."""
