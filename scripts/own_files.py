"""What scripts that write have in common: they replace only files that a script of this project wrote,
and say it when their results could not be written. docs/reference/file-formats.md has the table."""
import contextlib
import io
import os
import sys
from pathlib import Path

SCRIPT = Path(sys.argv[0]).name.removesuffix(".py")
PICTURE = "Sluice scripts/"  # in the metadata of a picture
FIGURES = '"program": '      # the first member of figures in JSON
SEARCHED = 4096              # bytes from the beginning


def refuse(sentence):
    print(f"{SCRIPT}: error: {sentence}", file=sys.stderr)
    sys.exit(2)


def require_own(flag, path, mark):
    """Ends the script with 2 if there is a file that does not have the mark in its first bytes. An
    empty file and a device may be written."""
    path = Path(path)
    if path.is_dir():
        refuse(f"{flag} {path} is a folder; give another name")
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with path.open("rb") as file:
            start = file.read(SEARCHED)
    except OSError as error:
        refuse(f"{flag} {path} cannot be read: {error.strerror}")
    if mark.encode() not in start:
        refuse(f"{flag} {path} is there already, and no script of this project wrote it; remove it or give"
               " another name")


def write(path, text):
    """Replaces a file, which stays as it was if the new one cannot be written; then the script ends with 1."""
    path = Path(path)
    data = text.encode() if isinstance(text, str) else text
    try:
        if path.exists() and not path.is_file():  # a device
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))  # what a link points to
        unfinished = path.with_name(f"{path.name}.tmp.{os.getpid()}")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        print(f"{SCRIPT}: error: cannot write {path}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def write_picture(figure, path, dpi):
    """Writes a figure of matplotlib with the mark that require_own() looks for."""
    kind = Path(path).suffix.lower()[1:] or "png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format=kind,
                   metadata={"Creator" if kind == "svg" else "Software": PICTURE + SCRIPT})
    write(path, drawn.getvalue())


@contextlib.contextmanager
def checked_output():
    """Around all that a script prints. A reader that has gone away, such as head, has all that it wants;
    output that is lost otherwise makes the exit code 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # of another file
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        print(f"{SCRIPT}: error: the standard output could not be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
