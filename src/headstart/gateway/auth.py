"""Who asks: API key to tenant."""

import hashlib
from collections.abc import Sequence

from headstart.accounting.tenant import DEFAULT_TENANT, UNKNOWN_TENANT, Tenant
from headstart.errors import Unauthorized
from headstart.wire.http1 import Fields


class Authenticator:
    """Finds the tenant that a request's key belongs to.

    Keys are looked up by their SHA-256: how long that takes depends on the digest, which nobody
    can steer towards another's, and not on how much of a key was guessed. A key that was right is
    kept in memory, one for each tenant at most, and not digested again; looking it up compares
    bytes only where Python's keyed 64-bit hashes are equal. Without tenants every request belongs
    to `DEFAULT_TENANT` and no key is looked at.

    Args:
        tenants: each with the SHA-256 of its key.
    """

    __slots__ = ("_by_digest", "_by_key")

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self._by_digest = {tenant.key_sha256: tenant for tenant in tenants}
        self._by_key: dict[bytes, Tenant] = {}

    @property
    def requires_key(self) -> bool:
        """Whether there are tenants; then a client's key never goes upstream."""
        return bool(self._by_digest)

    @property
    def stranger(self) -> Tenant:
        """Whom a request is recorded for as long as its key has not been looked at."""
        return UNKNOWN_TENANT if self._by_digest else DEFAULT_TENANT

    def tenant_of(self, fields: Fields) -> Tenant:
        """Return the owner of the key in `Authorization: Bearer` or `x-api-key`.

        Raises:
            Unauthorized: there is no key, or no tenant has it.
        """
        if not self._by_digest:
            return DEFAULT_TENANT
        key = _key_of(fields)
        if key is None:
            raise Unauthorized("The request has no API key; send `Authorization: Bearer <key>`.")
        tenant = self._by_key.get(key)
        if tenant is None:
            tenant = self._by_digest.get(hashlib.sha256(key).digest())
            if tenant is None:
                message = "No tenant has this API key; check the key or ask for a new one."
                raise Unauthorized(message)
            self._by_key[key] = tenant
        return tenant


def _key_of(fields: Fields) -> bytes | None:
    authorization = fields.get(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and key:
            return key.strip()
    return fields.get(b"x-api-key")
