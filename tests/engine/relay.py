"""What stands between two engines and spoils what passes."""

import contextlib
import socket
import threading


class Relay:
    """Passes bytes on to a port of this machine. `cuts`: its first connections end after so many
    bytes of answers; `flip_at`: one bit of that byte of the answers is turned; `stall_at`: behind
    so many of them nothing passes until `close`."""

    def __init__(
        self,
        port: int,
        *,
        cuts: tuple[int, ...] = (),
        flip_at: int | None = None,
        stall_at: int | None = None,
    ):
        self._target, self._cuts, self._flip_at = port, list(cuts), flip_at
        self._stall_at = stall_at
        self.stalled = threading.Event()
        self._goes_on = threading.Event()
        self.num_connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._goes_on.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.num_connections += 1
                target = socket.create_connection(("127.0.0.1", self._target))
                most = self._cuts.pop(0) if self._cuts else 1 << 40
                threading.Thread(
                    target=self._answer, args=(target, client, most), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        _end(source, target)

    def _answer(self, source: socket.socket, target: socket.socket, most: int) -> None:
        asking = threading.Thread(target=self._pump, args=(target, source), daemon=True)
        asking.start()
        passed = 0
        with contextlib.suppress(OSError):
            while passed < most and (data := source.recv(min(1 << 12, most - passed))):
                place = -1 if self._flip_at is None else self._flip_at - passed
                if 0 <= place < len(data):
                    data = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
                target.sendall(data)
                passed += len(data)
                if self._stall_at is not None and passed >= self._stall_at:
                    self.stalled.set()
                    self._goes_on.wait()
        _end(source, target)
        asking.join()
        source.close()
        target.close()


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
