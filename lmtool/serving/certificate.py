"""TLS certificate of a server's ports."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from lmtool.core.errors import FileError


@dataclass(slots=True)
class Certificate:
    """A certificate with its matching private key."""

    context: ssl.SSLContext
    """For servers; at least TLS 1.2."""
    chain: bytes = field(repr=False)
    """Content of the certificate's file, PEM."""
    key: bytes = field(repr=False)
    """Content of the private key's file, PEM."""
    certfile: str
    keyfile: str | None = None

    def renew(self) -> None:
        """Reload the files for new connections.

        Raises `FileError` for unusable files, and changes nothing.
        """
        renewed = read_certificate(self.certfile, self.keyfile)
        self.context.load_cert_chain(self.certfile, self.keyfile or self.certfile, password=_no_password)
        self.chain, self.key = renewed.chain, renewed.key


def read_certificate(certfile: str, keyfile: str | None = None) -> Certificate:
    """The certificate in a file, with its key from another or the same file. Raises `FileError`."""
    key_place = keyfile or certfile
    chain, key = _read(certfile, "--ssl-certfile"), _read(key_place, "--ssl-keyfile")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certfile, key_place, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise _unusable(certfile, keyfile, error) from None
    return Certificate(context, chain, key, certfile, keyfile)


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {(error.strerror or str(error)).lower()}", f"check {name}") from None


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def _unusable(certfile: str, keyfile: str | None, error: Exception) -> FileError:
    """The error for a certificate and key that cannot be loaded."""
    files = certfile if keyfile is None else f"{certfile} and {keyfile}"
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return FileError(f"{keyfile or certfile} does not match the certificate {certfile}", "check both")
    if isinstance(error, ssl.SSLError) and keyfile is None:
        hint = "put both into it, in PEM, or add the key's file:  --ssl-keyfile FILE"
        return FileError(f"{certfile} has no certificate with its private key", hint)
    if isinstance(error, ssl.SSLError):
        return FileError(f"{files} are not a certificate and its key", "both must be PEM, which begins with -----BEGIN")
    hint = "decrypt it:  openssl pkey -in KEY -out FILE"
    return FileError(f"{files} cannot be used: {error}", hint)
