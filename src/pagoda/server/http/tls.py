"""`--ssl-certfile` and its like."""

import ssl

from pagoda.base.errors import ConfigError
from pagoda.config.server import ServerConfig


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """None serves plain HTTP. ConfigError for files that can't be read or don't fit together."""
    if config.ssl_certfile is None:
        if config.ssl_keyfile or config.ssl_ca_certs or config.ssl_cert_reqs:
            raise ConfigError("TLS needs a certificate of the server's own; give --ssl-certfile.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The certificate can't be used: {error}. Check --ssl-certfile, --ssl-keyfile and "
            "--ssl-ca-certs (PEM)."
        ) from error
    context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    return context


def _no_password() -> str:
    """OpenSSL would ask for one on the terminal."""
    raise ValueError("the key is encrypted, and a server has nobody to ask for its password")
