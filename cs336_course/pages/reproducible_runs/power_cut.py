"""Simulate what a power cut leaves of a checkpoint that is being saved.

An operating system keeps written bytes and new names in memory for a while, and brings them to the
disk when it likes, as POSIX allows. `fsync` waits until they are there. Names arrive in the order
in which they were given. Real file systems may be kinder.
"""

from collections.abc import Sequence

Call = tuple[str, ...]
FILE, BESIDE, FOLDER = "checkpoint.pt", "checkpoint.tmp", "folder"
OLD, NEW, TORN, ABSENT = "old", "new", "torn", "absent"
WRITE, SYNC, RENAME = ("write", BESIDE), ("fsync", BESIDE), ("replace", BESIDE, FILE)
WAYS: dict[str, list[Call]] = {
    "write over the old file": [("write", FILE)],
    "remove it, then write": [("remove", FILE), ("write", FILE)],
    "write beside it, rename": [WRITE, RENAME],
    "write beside it, fsync, rename": [WRITE, SYNC, RENAME],
    "the same, and fsync the folder": [WRITE, SYNC, RENAME, ("fsync", FOLDER)],
}
"""How one may save a checkpoint where there is an old one."""


class Disk:
    """A folder with an old checkpoint, as programs see it and as the disk has it."""

    def __init__(self) -> None:
        self.contents: list[set[str]] = [{OLD}]
        """What the disk may have of each file's bytes."""
        self.names = {FILE: 0}
        self.on_disk = [dict(self.names)]
        """The tables of names that the disk may have."""

    def call(self, what: str, name: str, new_name: str = "") -> None:
        """Write to a file, rename or remove it, or bring it to the disk.

        Raises:
            ValueError: If there is no such call.
        """
        match what:
            case "write" if name in self.names:  # the bytes that were there are given up
                self.contents[self.names[name]] |= {TORN, NEW}
            case "write":
                self.contents.append({TORN, NEW})
                self.rename({**self.names, name: len(self.contents) - 1})
            case "remove":
                self.rename({n: file for n, file in self.names.items() if n != name})
            case "replace":
                others = {n: file for n, file in self.names.items() if n != name}
                self.rename({**others, new_name: self.names[name]})
            case "fsync" if name == FOLDER:
                self.on_disk = [self.names]
            case "fsync":
                self.contents[self.names[name]] = {NEW}
            case _:
                raise ValueError(f"there is no call {what!r}")

    def rename(self, names: dict[str, int]) -> None:
        """Change the table of names, in memory first."""
        self.names = names
        self.on_disk = [*self.on_disk, names]

    def after_power_cut(self) -> set[str]:
        """Return what may be found under the checkpoint's name."""
        found = set()
        for names in self.on_disk:
            found |= self.contents[names[FILE]] if FILE in names else {ABSENT}
        return found


def during(calls: Sequence[Call]) -> list[str]:
    """Return what a power cut during or after some calls may leave."""
    disk = Disk()
    found = disk.after_power_cut()
    for call in calls:
        disk.call(*call)
        found |= disk.after_power_cut()
    return sorted(found)


def after(calls: Sequence[Call]) -> list[str]:
    """Return what a power cut may leave that comes when all calls have returned."""
    disk = Disk()
    for call in calls:
        disk.call(*call)
    return sorted(disk.after_power_cut())
