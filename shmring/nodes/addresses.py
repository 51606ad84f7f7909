"""TCP connections between nodes: where a rank listens, and how another one connects to it."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ADDRESS_S = 1.0  # to connect to one address
KEEPALIVE = (10, 5, 4)  # seconds without data, seconds between probes, probes
SILENCE_S = 30  # after which a peer is lost

_SIOCGIFADDR = 0x8915
_SIOCGIFADDR_IPV4 = slice(20, 24)  # of the answer


def listen() -> list[socket.socket]:
    """Sockets that listen on all addresses of this machine: IPv4, and IPv6 where there is any."""
    listeners: list[socket.socket] = []
    for family, everywhere in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        with suppress(OSError):
            listener = socket.socket(family)
            listener.setblocking(False)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((everywhere, 0))
            listener.listen(1024)
            listeners.append(listener)
    return listeners


def card(listeners: list[socket.socket]) -> list[str]:
    """Where these can be reached, as texts ``port/address``: by number, by the name of the host, by loopback."""
    found = []
    for listener in listeners:
        port = listener.getsockname()[1]
        is_four = listener.family == socket.AF_INET
        numbers = _ipv4() if is_four else _ipv6()
        loopback = "127.0.0.1" if is_four else "::1"
        ordered = [one for one in numbers if one != loopback] + [socket.gethostname(), loopback]
        found += [(i >= len(ordered) - 2, f"{port}/{one}") for i, one in enumerate(ordered)]
    return [text for _, text in sorted(found, key=lambda one: one[0])]


def _ipv4() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                answer = fcntl.ioctl(s, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                found.append(socket.inet_ntoa(answer[_SIOCGIFADDR_IPV4]))
    return found


def _ipv6() -> list[str]:
    found = []
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, _, _, scope, *_ = line.split()
            if scope == "00":  # others are valid on one link only
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    return found


def connect(places: list[str], greet: Callable[[socket.socket], bool], left_s: Callable[[], float]) -> socket.socket:
    """A connection to the first of these places at which ``greet`` finds the right peer; a name may have several.

    Raises `OSError`, which lists the errors, if there is none.
    """
    errors, tried = [], set()
    for place in places:
        port, _, host = place.partition("/")
        try:
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            errors.append(f"{host}: {error}")
            continue
        for family, _, _, _, address in found:
            if address in tried:
                continue
            tried.add(address)
            s = socket.socket(family, socket.SOCK_STREAM)
            try:
                s.settimeout(max(1e-3, min(ADDRESS_S, left_s())))
                s.connect(address)
                if greet(s):
                    return s
                raise OSError(errno.ECONNREFUSED, "another program listens there")
            except OSError as error:
                s.close()
                errors.append(f"{address!r}: {error}")
    raise OSError(errno.EHOSTUNREACH, "; ".join(errors))


def keep_alive(s: socket.socket) -> None:
    """Have the kernel probe the peer's kernel, whatever the two processes do; send at once."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    for name, value in zip(names, KEEPALIVE, strict=True):
        s.setsockopt(socket.IPPROTO_TCP, name, value)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
