"""Which addresses a host has, and which are of the public network."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

# IANA's registries of special-purpose addresses. What is no global unicast is refused as a whole;
# these are the parts of it that lead elsewhere: protocols and tunnels (Teredo, ORCHID, 6to4 and
# its relays, anycast to the nearest router or name server) and documentation.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
_SPECIAL_V4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
    )
]  # fmt: skip
# Addresses that stand for an IPv4 one: mapped by the system, or by a NAT64 (RFC 6052) where a
# network has IPv6 only and its DNS writes the IPv4 addresses of others like this.
_IPV4_INSIDE = [ipaddress.IPv6Network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96")]
# RFC 5214: interface ids of ISATAP end with the IPv4 address that packets are sent on to.
_ISATAP = (0x00005EFE, 0x02005EFE)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host and port; OSError where there are none."""


# Threads of their own: names whose servers are slow hold up each other, and nothing else.
_resolving = ThreadPoolExecutor(4, "resolve")


async def resolve(host: str, port: int) -> Sequence[str]:
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_resolving, ask)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Whether an address is one of the public network, and stands for none that is not."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return _is_public_v4(found)
    inside = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    if any(found in part for part in _IPV4_INSIDE):
        return _is_public_v4(inside)
    if found not in _GLOBAL_UNICAST or any(found in part for part in _SPECIAL_V6):
        return False
    return int(found) >> 32 & 0xFFFFFFFF not in _ISATAP or _is_public_v4(inside)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    special = address.is_multicast or any(address in part for part in _SPECIAL_V4)
    return address.is_global and not special
