"""Results of a long bench: one JSON object a line, read back by the key of the run."""
import json
import os


def load(path, key=lambda record: record["key"]):
    """key -> record; a later record of a key replaces an earlier one. A last line that was cut
    short (the bench was interrupted) is left out; a file that does not exist has none."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        records = (json.loads(line) for line in file if line.endswith("\n"))
        return {key(record): record for record in records}


def open_to_append(path):
    """The file, behind its last whole line: what an interrupted run left of a record is cut off."""
    if os.path.exists(path):
        with open(path, "rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    return open(path, "a", encoding="utf-8")


def append(file, record):
    file.write(json.dumps(record, separators=(",", ":")) + "\n")
    file.flush()
