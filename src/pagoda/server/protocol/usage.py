"""What /v1/usage answers."""

from typing import Literal

import msgspec

from pagoda.server.keys.usage import KeyUsage


class UsageList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[KeyUsage]
