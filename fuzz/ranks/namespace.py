"""A private network: a namespace of Linux that has a loopback interface and nothing else.

Some launchers listen on every interface of a machine, whatever they are told. Inside such a namespace there is none
that anybody could reach. Root makes one as it is; another user inside a user namespace of its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_PR_SET_DUMPABLE = 4


def enter_new() -> None:
    """Move this process to a new private network. Raises `OSError` where the system does not allow it."""
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in ids.items():
            Path("/proc/self", name).write_text(f"{number} {number} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def handles() -> list[int]:
    """Descriptors of this process's user and network namespaces, for `enter`. The caller owns them."""
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "net")]


def enter(user: int, net: int) -> None:
    """Move this process, which has one thread, to the namespaces of `handles`. Raises `OSError`.

    What the kernel was told of this process's parent (`die_with_parent`) may be forgotten.
    """
    if not os.path.samestat(os.fstat(user), Path("/proc/self/ns/user").stat()):
        _call("setns", user, _CLONE_NEWUSER)
        _call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    _call("setns", net, _CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
