"""Certificates for tests, made by the system's openssl."""

import subprocess
from pathlib import Path

import pytest


def make_certificate(
    folder: Path, name: str = "server", host: str = "localhost"
) -> tuple[Path, Path]:
    """Write `name.pem`, self-signed for `host`, and `name.key`; skips without openssl."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"),
        *("-keyout", str(key), "-out", str(cert)),
    )
    return cert, key


def encrypt_key(key: Path, encrypted: Path) -> None:
    """Write `key` again, with a password."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(encrypted))


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no certificate can be made: {exc}")
