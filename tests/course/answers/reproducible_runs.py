"""Other answers to the exercises on reproducible runs."""

from cs336_course.engine import edits

SYNCED = """        file.flush()  # from Python's buffer to the operating system
        os.fsync(file.fileno())  # from there to the disk
"""
WRITTEN = f"""    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
{SYNCED}"""
RENAMED = "    os.replace(unfinished, path)\n"
ATOMIC = WRITTEN + RENAMED
FLUSHED = ("        file.flush()  # from Python's buffer to the operating system\n", "")
IN_MEMORY = [
    (
        "        torch.save(state, file)\n",
        "        for byte in buffer.getvalue():\n            file.write(bytes([byte]))\n",
    ),
    ("    unfinished =", "    torch.save(state, buffer := io.BytesIO())\n    unfinished ="),
    ("def save", "import io\n\n\ndef save"),
]
FOLDER = """    if os.name == "posix":  # the new name as well; Windows can't open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
"""
LOADED = """    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
"""
ONE_FILE_PER_STEP = [
    (
        RENAMED,
        """    unfinished.rename(path.with_name(f"{step:02}.pt"))
    for old in sorted(path.parent.glob("*.pt"))[:-1]:
        old.unlink()
""",
    ),
    (
        LOADED,
        """    found = sorted(path.parent.glob("*.pt"))
    if not found:
        return 0
    state = torch.load(found[-1], weights_only=True)
""",
    ),
]
TRYING_OLDER_FILES = [
    (ATOMIC, "    torch.save(state, path.with_name(f'{step:02}.pt'))\n"),
    (
        LOADED,
        """    for found in sorted(path.parent.glob("*.pt"), reverse=True):
        try:
            state = torch.load(found, weights_only=True)
            break
        except Exception:
            continue
    else:
        return 0
""",
    ),
]
TWO_FILES = [
    (
        ATOMIC,
        """    for part in ("model", "optimizer"):
        unfinished = path.with_suffix(".tmp")
        with unfinished.open("wb") as file:
            torch.save(state | {part: None}, file)
            os.fsync(file.fileno())
        os.replace(unfinished, path.with_name(f"{part}.pt"))
""",
    ),
    (
        LOADED,
        """    if not path.with_name("model.pt").exists():
        return 0
    state = torch.load(path.with_name("model.pt"), weights_only=True)
    state["model"] = torch.load(path.with_name("optimizer.pt"), weights_only=True)["model"]
""",
    ),
]


def with_import(module: str, *pairs: tuple[str, str]):
    """The solution with replacements, after an import."""
    return edits(("def save", f"{module}\n\n\ndef save"), *pairs)


RIGHT = {
    "checkpoint": [
        edits(*IN_MEMORY),
        FLUSHED,  # torch.save itself flushes the file
        # bytes that are brought to the disk by another descriptor
        edits(
            (SYNCED, ""),
            (
                RENAMED,
                "    number = os.open(unfinished, os.O_RDWR)\n    os.fsync(number)\n"
                "    os.close(number)\n" + RENAMED,
            ),
        ),
        (FOLDER, ""),  # a renaming that may be lost, with the old checkpoint still there
        with_import(
            "from os import fsync, replace",
            ("os.fsync(file", "fsync(file"),
            ("os.replace(", "replace("),
        ),
        with_import(
            "from cs336_lib.io import atomic",
            (
                ATOMIC,
                "    with atomic(path) as unfinished:\n        torch.save(state, unfinished)\n",
            ),
        ),
        edits(*ONE_FILE_PER_STEP),
        edits(*TRYING_OLDER_FILES),
    ],
}
REFUSED = {
    "checkpoint": [
        (ATOMIC, "    torch.save(state, path)\n"),  # written in place
        (SYNCED, ""),  # the name may reach the disk before the bytes
        edits((SYNCED, ""), (RENAMED, f"{RENAMED}    os.fsync(os.open(path, os.O_RDWR))\n")),
        edits(FLUSHED, *IN_MEMORY),  # the last bytes are still in Python's buffer
        with_import("import shutil", ("os.replace(unfinished", "shutil.copy(unfinished")),
        (ATOMIC, f"    path.unlink(missing_ok=True)\n{ATOMIC}"),  # the old one is removed first
        edits(("step}", 'step, "all": path}'), ("weights_only=True", "weights_only=False")),
        edits(*TWO_FILES),  # of two steps, if the power is cut between them
        ('return state["step"]', 'return state["step"] + 1'),
        ("    optimizer.load_state_dict", "    optimizer.state_dict"),
        ("    model.load_state_dict", "    model.state_dict"),
        (ATOMIC, ""),
    ],
}
