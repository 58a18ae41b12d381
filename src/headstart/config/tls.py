"""The certificate's two files: one alone is of no use."""

from headstart.config.schema import TlsConfig
from headstart.config.values import Reading
from headstart.errors import ConfigError


def check_tls(tls: TlsConfig, reading: Reading) -> None:
    """Check that the data port has both files or neither; what is in them shows at the start.

    Args:
        tls: as read.
        reading: knows where each key was set.

    Raises:
        ConfigError: one of them is not set, or is no file.
    """
    files = {"tls.cert_file": tls.cert_file, "tls.key_file": tls.key_file}
    given = {key: path for key, path in files.items() if path is not None}
    if len(given) == 1:
        (key,) = given
        (other,) = files.keys() - given.keys()
        raise ConfigError(
            f"{reading.origins[key]}: `{key}` needs `{other}`; https takes a certificate and its "
            "private key",
            param=other,
        )
    for key, path in given.items():
        if not path.is_file():
            raise ConfigError(
                f"{reading.origins[key]}: `{key}` is {path}, which is no file", param=key
            )
