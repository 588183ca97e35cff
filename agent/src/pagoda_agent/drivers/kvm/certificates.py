"""Whose certificate to accept: KVMs sign their own."""

import asyncio
import hashlib
import ssl
from contextlib import suppress

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.kvm.address import KvmAddress

_SECONDS = 10.0
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python's ssl does not name: a KVM without a battery
# makes its certificate in 1970, and a pinned certificate says who it is by its bytes.
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


async def tls_context(address: KvmAddress) -> ssl.SSLContext | None:
    """How to check the KVM's certificate; None where the URL is not one of https.

    Raises DriverError where it is not the pinned one, or none that can be trusted; that error
    names the fingerprint that the KVM showed.
    """
    if not address.secure:
        return None
    if address.insecure:
        return _blind()
    if not address.fingerprint:
        context = ssl.create_default_context()
        try:
            await _certificate(address, context)
        except ssl.SSLCertVerificationError as error:
            shown = _fingerprint(await _certificate(address, _blind()))
            raise DriverError(
                f"The certificate of {address} cannot be trusted ({error.verify_message}). KVMs "
                f"sign their own: its SHA-256 fingerprint is {shown}. If the KVM's own page shows "
                f"the same, add ?fingerprint={shown} to the URL; ?insecure=1 accepts any."
            ) from error
        return context
    certificate = await _certificate(address, _blind())
    shown = _fingerprint(certificate)
    if shown != address.fingerprint:
        raise DriverError(
            f"{address} shows a certificate with the fingerprint {shown}, not the one in the URL: "
            "it was renewed, or somebody else answers. Check it on the KVM before you change it."
        )
    # Later connections trust this certificate alone, so nobody can answer instead of the KVM.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    context.load_verify_locations(cadata=certificate)
    return context


def _blind() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


async def _certificate(address: KvmAddress, context: ssl.SSLContext) -> bytes:
    """The certificate, in DER, that the KVM shows to a connection that asks nothing more."""
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.host
            )
    except ssl.SSLCertVerificationError:
        raise
    except (OSError, TimeoutError) as error:
        raise DriverError(
            f"{address} cannot be reached by https: {error or 'no answer'}. Check the address, "
            "the port, and that the KVM is on."
        ) from error
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await writer.wait_closed()
    return bytes(certificate)
