"""A rank that loads nothing: what it does stands where the model's path would."""

import os
import signal
import sys
import time

import msgspec

from pagoda.engine.ranks.link import FolderEnd, RankDied, RankDone, RankLaunch, RankUp

LAST = 2

launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankLaunch)
end = FolderEnd(launch.place, launch.rank)
end.send(RankUp(launch.rank, 1, 1))
end.receive()
if launch.rank != LAST and launch.model_path not in ("waits", "sleeps"):
    end.send(RankDied(launch.rank, "RuntimeError: Connection closed by peer", lost_peer=True))
    end.close()
    sys.exit(1)
match launch.model_path:
    case "dies":
        end.send(RankDied(launch.rank, "the weights are gone"))
        end.close()
        sys.exit(1)
    case "out of memory":
        end.send(RankDied(launch.rank, "no room", out_of_memory=True))
        end.close()
        sys.exit(1)
    case "exits":
        os._exit(3)
    case "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    case "sleeps":
        while call := end.receive():
            late = launch.rank == LAST and call.method == "wake_up"
            end.send(RankDone(launch.rank, "no room" if late else ""))
time.sleep(60)
