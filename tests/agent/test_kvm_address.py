"""URLs of KVMs."""

import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.drivers.kvm.address import read_address
from pagoda_agent.drivers.registry import make_driver

PRINT = ":".join(["AB"] * 32)


@pytest.fixture(autouse=True)
def _no_password(monkeypatch):
    monkeypatch.delenv("PAGODA_DRIVER_PASSWORD", raising=False)


def test_all_of_it():
    address = read_address(
        f"nanokvms://me%40home:p%2Fw%3A@kvm.lan:8443/?layout=de&fingerprint={PRINT}", secure=True
    )
    assert (address.user, address.password) == ("me@home", "p/w:")
    assert (address.host, address.port, str(address)) == ("kvm.lan", 8443, "kvm.lan:8443")
    assert (address.layout, address.fingerprint) == ("de", "ab" * 32)
    assert "p/w" not in repr(address)


def test_defaults():
    plain, secure = read_address("nanokvm://h", False), read_address("nanokvms://h", True)
    assert (plain.port, secure.port, plain.user, plain.password) == (80, 443, "admin", "")
    assert plain.layout == "us" and not plain.insecure and not plain.fingerprint
    assert str(read_address("nanokvm://[fe80::1]", False)) == "[fe80::1]:80"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nanokvm://", "no host"),
        ("nanokvm:host", "no host"),
        ("nanokvm://h:70000", "cannot be read"),
        ("nanokvm://h/web", "goes on after h"),
        ("nanokvm://h?layuot=de", "no option|has the option 'layuot'"),
        ("nanokvm://h?layout=xx", "known are us, de, fr"),
        ("nanokvms://h?fingerprint=12", "64 hexadecimal"),
        (f"nanokvms://h?fingerprint={'g' * 64}", "64 hexadecimal"),
        ("nanokvms://h?insecure=yes", "write 1"),
        ("nanokvm://h?insecure=1", "nanokvms://"),
        (f"nanokvm://h?fingerprint={'a' * 64}", "nanokvms://"),
        ("nanokvm://a%0Ab@h", "control characters"),
        ("nanokvm://a:hunter%0A22@h", "control characters"),
        ("nanokvm://h?password-file=/does/not/exist", "cannot be read"),
        ("nanokvn://h", "'nanokvm'"),
    ],
)
def test_what_cannot_be_used_is_refused(url, says):
    with pytest.raises(ConfigError, match=says) as caught:
        make_driver(url)
    assert "hunter" not in str(caught.value)
