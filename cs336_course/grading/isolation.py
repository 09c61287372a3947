"""Cut a process off from the network, from other processes and from their memory."""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

# Linux's CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID and CLONE_NEWNET
NEW_MOUNTS, NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x20000, 0x10000000, 0x20000000, 0x40000000
PRIVATE, UNSAFE = 0x44000, 0xE  # MS_REC | MS_PRIVATE, and MS_NOSUID | MS_NODEV | MS_NOEXEC
# Linux's PR_SET_PDEATHSIG, PR_SET_DUMPABLE and PR_SET_CHILD_SUBREAPER
END_WITH_PARENT, DUMPABLE, ADOPT = 1, 4, 36
SET_FLAGS, UP = 0x8914, 1  # Linux's SIOCSIFFLAGS and IFF_UP
HERE = ("localhost", "127.0.0.1", "::1", "")


def call(name: str, *arguments: int | bytes | None) -> bool:
    """Call a function of the C library, and return whether it exists and succeeds."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return function is not None and function(*arguments) == 0


def unshare(flags: int) -> bool:
    """Enter new namespaces, and return whether the system allows it."""
    return call("unshare", flags)


def end_with_parent() -> None:
    """Let the system end this process when its parent ends. Only Linux does."""
    call("prctl", END_WITH_PARENT, signal.SIGKILL)


def adopt() -> None:
    """Become the parent of descendants whose parent ends. Only Linux allows this."""
    call("prctl", ADOPT, 1)


def hide(is_hidden: bool = True) -> None:
    """Hide the memory and the open files of this process from other processes of the account."""
    call("prctl", DUMPABLE, int(not is_hidden))


def own_processes() -> bool:
    """Give the next child new namespaces of processes and mounts, and return whether it gets them.

    When the child ends, the system ends all of its descendants. None of them sees other processes.
    """
    return unshare(NEW_PROCESSES | NEW_MOUNTS)


def show_own_processes() -> None:
    """Show only the processes of this namespace in /proc, if the system allows it."""
    if call("mount", b"none", b"/", None, PRIVATE, None):
        call("mount", b"proc", b"/proc", b"proc", UNSAFE, None)


def has_own_processes() -> bool:
    """Return whether the system allows `own_processes`."""
    process = os.fork()
    if process == 0:
        os._exit(0 if own_processes() else 1)
    return os.waitpid(process, 0)[1] == 0


def offline() -> bool:
    """Cut this process off from the network, and return whether the system enforces it.

    On Linux, a new network namespace has only a loopback device. Elsewhere, or if the system
    doesn't allow it, Python refuses connections to other machines, but other programs don't.
    """
    user, group = os.getuid(), os.getgid()
    if not unshare(NEW_USER | NEW_NETWORK):
        sys.addaudithook(refuse_connections)
        return False
    with contextlib.suppress(OSError):  # keep the name of the user
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        import fcntl

        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    return True


def refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse connections to other machines, as a hook of `sys.addaudithook`."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and address[0] not in HERE:
            raise PermissionError("answers are graded without a network")
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in HERE:
        raise PermissionError("answers are graded without a network")


def limit_memory(gigabytes: float) -> None:
    """Limit the memory that this process may still allocate. Only Linux enforces this."""
    import resource  # Windows doesn't have it, and the command says so

    statm = Path("/proc/self/statm")
    if statm.exists():
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        limit = have + int(gigabytes * 1e9)
        with contextlib.suppress(ValueError):  # a lower limit is in force
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
