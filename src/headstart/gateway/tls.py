"""The data port's certificate: loaded at the start, and again whenever its files change."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from headstart.errors import ConfigError

_log = logging.getLogger(__name__)

_CHECK_S: Final = 5.0
"""Between two looks at the files: two `stat` calls, which cost nothing."""


class Certificate:
    """A certificate and its key, in a context that always offers the newest that can be used.

    Files and not a signal say when it was renewed: that is how certificate managers and mounted
    secrets work, and no process needs to be told. Connections that are open keep theirs.

    Args:
        cert_file: PEM file with the certificate and those between it and its authority.
        key_file: PEM file with its private key, not encrypted.

    Attributes:
        context: for the server.

    Raises:
        ConfigError: a file cannot be read, is not PEM, or they do not fit.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._cert_file = cert_file
        self._key_file = key_file
        self._seen = self._look()
        self.context = _context(cert_file, key_file)

    async def watch(self) -> None:
        """Load what changes, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """Load the files if they have changed and fit; return whether they were loaded.

        What does not fit, such as a new certificate whose key is still to be written, is said once
        and looked at again when one of the files changes.
        """
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            # First into a context of its own: a pair that does not fit would leave this one with
            # half of it.
            _context(self._cert_file, self._key_file)
            _load(self.context, self._cert_file, self._key_file)
        except ConfigError as error:
            _log.warning("the certificate in use is kept: %s", error.message)
            return False
        _log.info("new connections get the renewed certificate of %s", self._cert_file)
        return True

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._cert_file, self._key_file))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    # Size and inode too: a link that now points elsewhere may lead to a file that is older.
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, cert_file, key_file)
    return context


def _load(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    for path, key in ((cert_file, "tls.cert_file"), (key_file, "tls.key_file")):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot read {path}, named by `{key}`: {error.strerror}", param=key
            ) from error
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ConfigError(_fault(error, cert_file, key_file), param="tls") from error


def _fault(error: ssl.SSLError, cert_file: Path, key_file: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {key_file} does not belong to the certificate {cert_file}; give its own"
    return (
        f"{cert_file} and {key_file} cannot be used: {error.reason or error}; both must be PEM "
        "files, the first with the certificate, the second with its private key"
    )


def _no_password() -> str:
    # Without this, OpenSSL would ask for it on the terminal.
    raise ConfigError(
        "the private key of `tls.key_file` is encrypted; write it without a password, readable by "
        "this user only: openssl pkey -in KEY -out PLAIN",
        param="tls.key_file",
    )
