"""Whose certificate a driver takes."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from pagoda_agent.base.errors import DriverError
from tests.agent.fakes.nanokvm import PRO, FakeNanoKvm
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import Certificate, self_signed
from tests.agent.opened import opened

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def certificate(tmp_path) -> Certificate:
    return self_signed(tmp_path)


async def test_a_pinned_certificate(certificate):
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(certificate):
        url = kvm.url(f"?fingerprint={certificate.fingerprint}", "nanokvms")
        async with opened(url) as driver:
            await driver.screenshot()
            await driver.type_text("a")
    assert kvm.links == 1


async def test_one_that_nobody_vouches_for_is_refused_with_its_fingerprint(certificate):
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(certificate):
        with pytest.raises(DriverError, match="sign their own") as caught:
            async with opened(kvm.url(scheme="nanokvms")):
                pass
    shown = certificate.fingerprint.replace(":", "").lower()
    assert f"?fingerprint={shown}" in str(caught.value)
    assert kvm.logins == []


async def test_another_than_the_pinned_one_is_refused(certificate, tmp_path):
    other = self_signed(tmp_path, "other")
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(other):
        with pytest.raises(DriverError, match="somebody else answers"):
            async with opened(kvm.url(f"?fingerprint={certificate.fingerprint}", "nanokvms")):
                pass
    assert kvm.logins == []


async def test_one_that_changes_later_is_refused_too(certificate, tmp_path, monkeypatch):
    """The pinned one is looked at first, then somebody else answers at the same address."""
    from pagoda_agent.drivers.kvm import certificates

    other = self_signed(tmp_path, "other")
    pinned = certificate.file.read_text()

    async def shown(address, context):
        import ssl

        return ssl.PEM_cert_to_DER_cert(pinned)

    monkeypatch.setattr(certificates, "_certificate", shown)
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(other):
        with pytest.raises(DriverError, match="certificate"):
            async with opened(kvm.url(f"?fingerprint={certificate.fingerprint}", "nanokvms")):
                pass
    assert kvm.logins == []


async def test_any_certificate_where_the_user_says_so(certificate):
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(certificate), opened(kvm.url("?insecure=1", "nanokvms")) as driver:
        await driver.screenshot()


async def test_a_pinned_certificate_of_1970(tmp_path):
    """A KVM without a battery makes its certificate before it knows the time."""
    certificate = of_1970(tmp_path)
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(certificate):
        url = kvm.url(f"?fingerprint={certificate.fingerprint}", "nanokvms")
        async with opened(url) as driver:
            await driver.screenshot()


def of_1970(folder) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvm")])
    start = datetime(1970, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    file, key_file = folder / "old.crt", folder / "old.key"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Certificate(file, key_file, certificate.fingerprint(hashes.SHA256()).hex())


async def test_plain_http_where_https_is_meant():
    kvm = FakeNanoKvm(Still())
    async with kvm.run():
        with pytest.raises(DriverError, match="cannot be reached by https"):
            async with opened(kvm.url(scheme="nanokvms")):
                pass
