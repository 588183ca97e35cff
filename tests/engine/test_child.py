"""The engine's process, before it can say anything."""

import os
import signal

from pagoda.engine.client import EngineClient


async def test_ctrl_c_of_the_terminal_is_its_parents_alone(tiny_config, capfd):
    client = EngineClient.launch(tiny_config)
    os.kill(client.pid, signal.SIGINT)  # as a terminal sends it to all
    await client.wait_ready(60)
    await client.shutdown()
    assert "Traceback" not in capfd.readouterr().err
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
