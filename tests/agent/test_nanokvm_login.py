"""Into a NanoKVM of every kind."""

import asyncio

import pytest

from pagoda_agent.base.errors import DriverError, LoginError
from pagoda_agent.drivers.nanokvm.driver import make
from pagoda_agent.input.actions import Power
from tests.agent.fakes.nanokvm import PRO, FakeNanoKvm, Firmware
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import until
from tests.agent.opened import opened


@pytest.mark.parametrize("password", ["obfuscated", "plain"])
@pytest.mark.parametrize("token", ["cookie", "data"])
async def test_each_form_of_password_and_token(password, token):
    kvm = FakeNanoKvm(Still(), Firmware(password=password, token=token), password="pä ss+/=")
    kvm_url = "nanokvm://admin:p%C3%A4%20ss%2B%2F%3D@127.0.0.1:{}"
    async with kvm.run():
        driver = make(kvm_url.format(kvm.port))
        await driver.open()
        try:
            assert (await driver.screenshot()).size == (320, 200)
            await until(lambda: kvm.links == 1, "the WebSocket")
        finally:
            await driver.close()
    assert len(kvm.logins) == (1 if password == "obfuscated" else 2)
    assert kvm.logins[0]["username"] == "admin" and kvm.logins[0]["password"] != "pä ss+/="


async def test_a_kvm_without_logins_is_asked_for_none():
    kvm = FakeNanoKvm(Still(), Firmware(password="none"))
    async with kvm.run(), opened(f"nanokvm://127.0.0.1:{kvm.port}") as driver:
        await driver.screenshot()
    assert kvm.logins == [] and kvm.links == 1


async def test_a_wrong_password_is_tried_once_in_each_form():
    kvm = FakeNanoKvm(Still())
    async with kvm.run():
        driver = make(f"nanokvm://admin:hunter22@127.0.0.1:{kvm.port}")
        with pytest.raises(LoginError, match="refused the password of 'admin'") as caught:
            await driver.open()
        assert "hunter22" not in str(caught.value)
    assert len(kvm.logins) == 2 and kvm.links == 0


async def test_without_a_password_the_error_says_where_to_put_it(monkeypatch):
    monkeypatch.delenv("PAGODA_DRIVER_PASSWORD", raising=False)
    kvm = FakeNanoKvm(Still())
    async with kvm.run():
        with pytest.raises(LoginError, match="PAGODA_DRIVER_PASSWORD"):
            await make(f"nanokvm://127.0.0.1:{kvm.port}").open()
    assert kvm.logins == []


async def test_the_password_may_be_in_the_environment_or_a_file(monkeypatch, tmp_path):
    kvm = FakeNanoKvm(Still(), password="from elsewhere")
    file = tmp_path / "password"
    file.write_text("from elsewhere\n")
    file.chmod(0o600)
    async with kvm.run():
        async with opened(f"nanokvm://127.0.0.1:{kvm.port}?password-file={file}"):
            pass
        monkeypatch.setenv("PAGODA_DRIVER_PASSWORD", "from elsewhere")
        async with opened(f"nanokvm://127.0.0.1:{kvm.port}"):
            pass
    assert len(kvm.logins) == 2


@pytest.mark.parametrize("firmware", [Firmware(), PRO], ids=["obfuscated", "plain"])
async def test_a_session_that_ends_is_renewed_once_and_in_the_form_that_worked(firmware):
    kvm = FakeNanoKvm(Still(), firmware)
    async with kvm.run(), opened(kvm.url()) as driver:
        before = len(kvm.logins)
        kvm.revoke()
        await driver.power(Power("press"))
        assert len(kvm.logins) == before + 1
        assert kvm.posts == [("/api/vm/gpio", {"type": "power", "duration": 800})]
        await driver.power(Power("reset"))
        assert len(kvm.logins) == before + 1


async def test_stream_and_keys_come_back_with_a_new_session():
    kvm = FakeNanoKvm(Still(), close_code=4401)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.screenshot()
        kvm.revoke()
        await kvm.cut()
        await until(lambda: kvm.links == 2 and kvm.stream.clients == 2, "both connections")
        assert not (await driver.screenshot()).stale
        # The stream and the WebSocket asked for one at the same time.
        assert len(kvm.logins) == 2


async def test_tasks_that_lose_a_session_together_share_the_next_one():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        kvm.revoke()
        await asyncio.gather(*(driver.power(Power("press")) for _ in range(4)))
        assert len(kvm.posts) == 4 and len(kvm.logins) == 2


async def test_a_password_that_was_changed_is_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._PATIENCE", 0.5)
    kvm = FakeNanoKvm(Still(), close_code=4401)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.screenshot()
        kvm.password = "changed"
        kvm.revoke()
        await kvm.cut()
        with pytest.raises(DriverError):
            await driver.type_text("a")
        with pytest.raises(DriverError, match="refused the password"):
            await driver.screenshot()
        assert len(kvm.logins) == 2


async def test_an_account_that_is_locked():
    kvm = FakeNanoKvm(Still(), login_code=-5)
    async with kvm.run():
        with pytest.raises(LoginError, match="wait some minutes"):
            await make(kvm.url()).open()
    assert len(kvm.logins) == 1


@pytest.mark.parametrize("answer", [{}, {"token": 5}, {"token": "a\r\nX: b"}, ["token"], "token"])
async def test_a_login_without_a_session(answer):
    kvm = FakeNanoKvm(Still(), login_answer=answer)
    async with kvm.run():
        with pytest.raises(LoginError, match="opened no session"):
            await make(kvm.url()).open()


async def test_a_kvm_of_https_is_told_so_before_it_gets_the_password():
    kvm = FakeNanoKvm(Still(), leads_to="https://127.0.0.1")
    async with kvm.run():
        with pytest.raises(DriverError, match="nanokvms://"):
            await make(kvm.url()).open()
    assert kvm.logins == []


async def test_nobody_there():
    kvm = FakeNanoKvm(Still())
    async with kvm.run():
        url = kvm.url()
    with pytest.raises(DriverError, match="cannot be reached"):
        await make(url).open()
