"""Drivers' URLs: hosts, ports, and passwords that stay secret."""

import logging

import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.drivers.address import parse_address, without_password
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.settings import Settings, load, save


@pytest.fixture(autouse=True)
def no_password(monkeypatch):
    monkeypatch.delenv("PAGODA_DRIVER_PASSWORD", raising=False)


@pytest.mark.parametrize(
    "url, host, port",
    [
        ("vnc://box", "box", 5900),
        ("vnc://box:0", "box", 5900),
        ("vnc://box:1/", "box", 5901),
        ("vnc://box:99", "box", 5999),
        ("vnc://box:100", "box", 100),
        ("vnc://box:5902", "box", 5902),
        ("vnc://[::1]:2", "::1", 5902),
    ],
)
def test_vnc_ports_are_displays_where_they_are_small(url, host, port):
    address = make_driver(url)._address
    assert (address.host, address.port) == (host, port)


def test_passwords_from_url_file_and_environment(tmp_path, monkeypatch):
    file = tmp_path / "pass word"
    file.write_text("from the file\r\nsecond line\n")
    file.chmod(0o600)
    assert parse_address("vnc://me:a%2Fb%40c@box").password == "a/b@c"
    assert parse_address("vnc://me:x@box").user == "me"
    assert parse_address(f"vnc://box?password-file={file}").password == "from the file"
    assert parse_address("vnc://box").password == ""
    monkeypatch.setenv("PAGODA_DRIVER_PASSWORD", "from the environment")
    assert parse_address("vnc://box").password == "from the environment"
    assert parse_address(f"vnc://box?password-file={file}").password == "from the file"
    assert parse_address("vnc://:from-the-url@box").password == "from-the-url"


@pytest.mark.parametrize(
    "url, message",
    [
        ("vnc:", "names no host"),
        ("vnc://:5900", "names no host"),
        ("vnc://box:99999", "cannot be read"),
        ("vnc://:se/cret@box", "%2F"),
        ("vnc://:secret@box/path", "goes on after box"),
        ("vnc://:secret@box?passwd=x", "known: layout, password-file, unicode"),
        ("vnc://box?password-file=/nowhere/secret", "cannot be read"),
        ("vnz://box", "nearest known is 'vnc'"),
        ("127.0.0.1:5977", "write vnc://127.0.0.1:5977 for"),
        ("box:1", "write vnc://box:1 for"),
        (":77", "write x11://:77[.]"),
        ("box:secret@1", "no driver 'box'"),
        ("x11:77", "or x11://:77[.]"),
        ("x11::77.0", "or x11://:77.0[.]"),
        ("vnc://box?layout=xx", "layout 'xx'; known are us, de, fr"),
        ("vnc://box?unicode=x", "unicode of a VNC driver's URL is 1 or 0"),
    ],
)
def test_urls_that_cannot_be_used(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_driver(url)
    assert "secret" not in str(caught.value) or "nowhere" in url


def test_a_password_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "password"
    file.write_text("from the file\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=f"can be read by others; run chmod 600 {file}"):
        parse_address(f"vnc://box?password-file={file}")


def test_settings_that_others_can_read_are_refused(tmp_path):
    file = tmp_path / "agent.json"
    save(Settings(api_key="sk-key"), file)
    assert load(file).api_key == "sk-key"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"can be read by others; run chmod 600 {file}"):
        load(file)


def test_a_password_in_the_url_is_used_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    assert make_driver("vnc://:geheim@box")._address.password == "geheim"
    assert "vnc://host?password-file=PATH" in caplog.text and "geheim" not in caplog.text
    caplog.clear()
    monkeypatch.setenv("PAGODA_DRIVER_PASSWORD", "geheim")
    make_driver("vnc://me@box")
    assert not caplog.text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nanokvm://me:p%40ss@host:81?layout=de", "nanokvm://me@host:81?layout=de"),
        ("vnc://:secret@[::1]:5901", "vnc://[::1]:5901"),
        ("x11://:1", "x11://:1"),
        ("x11:", "x11:"),
        ("", ""),
    ],
)
def test_urls_are_shown_without_their_password(url, shown):
    assert without_password(url) == shown


def test_a_password_is_not_printed():
    assert "secret" not in repr(parse_address("vnc://:secret@box"))
