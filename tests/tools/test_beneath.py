"""Only regular files below the root are opened, whatever the path, the links and the moment."""

import os
import socket
import threading
from pathlib import Path

import pytest

from streamagent.errors import ConfigError, ToolError
from streamagent.tools import beneath
from streamagent.tools.beneath import MAX_NAMES, open_beneath, real_root


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "srv" / "a"
    (folder / "sub").mkdir(parents=True)
    (folder / "file.txt").write_text("inside")
    (folder / "sub" / "deep.txt").write_text("deep")
    (tmp_path / "srv" / "ab").mkdir()
    (tmp_path / "srv" / "ab" / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    return str(folder)


def content(root, path):
    with open_beneath(root, path) as file:
        return file.read()


def refusal(root, path):
    with pytest.raises(ToolError) as caught:
        open_beneath(root, path)
    return str(caught.value)


@pytest.mark.parametrize("path", ["file.txt", "./file.txt", "sub/../file.txt", "sub//../file.txt"])
def test_a_file_below_is_opened(root, path):
    """However its path is written."""
    assert content(root, path) == b"inside"


def test_a_deep_file_is_opened_also_by_its_absolute_path(root):
    """An absolute path below the root names the same file."""
    assert content(root, "sub/deep.txt") == b"deep"
    assert content(root, f"{root}/sub/deep.txt") == b"deep"


@pytest.mark.parametrize(
    "path",
    ["../../secret.txt", "../ab/secret.txt", "sub/../../ab/secret.txt", "/etc/passwd", "..", "/", "../missing.txt"],
)
def test_a_path_that_leads_out_is_refused(root, path):
    """Whether there is something or not."""
    assert "is outside of the folder that can be read" in refusal(root, path)


def test_a_sibling_with_the_same_beginning_is_outside(root):
    """`/srv/ab` is not below `/srv/a`."""
    assert "is outside" in refusal(root, f"{root}b/secret.txt")


def test_a_link_is_followed_as_long_as_it_stays_below(root):
    """Links inside are harmless."""
    Path(root, "folder").symlink_to("sub")
    Path(root, "sub/up").symlink_to("../file.txt")
    assert content(root, "folder/deep.txt") == b"deep"
    assert content(root, "sub/up") == b"inside"


@pytest.mark.parametrize("target", ["../../secret.txt", "/etc/passwd", "../ab"])
def test_a_link_that_leads_out_is_refused(root, target):
    """A file's and a folder's."""
    Path(root, "link").symlink_to(target)
    assert "is outside" in refusal(root, "link")
    assert "is outside" in refusal(root, "link/secret.txt")


@pytest.mark.parametrize("target", ["loop", "nowhere"])
def test_a_link_that_leads_nowhere_is_refused(root, target):
    """Into itself, or to a missing file."""
    Path(root, "loop").symlink_to(target)
    assert refusal(root, "loop")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_what_is_no_path_is_refused(root, path):
    """NUL and half surrogates."""
    assert "no valid path" in refusal(root, path)


def test_a_pipe_and_a_socket_are_refused_without_waiting(root, monkeypatch):
    """To open a pipe would block for ever."""
    monkeypatch.chdir(root)  # a socket's path has at most about 100 characters
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert "no regular file" in refusal(root, "pipe")
        assert "no regular file" in refusal(root, "socket")


def test_a_pipe_that_takes_the_files_place_is_refused(root, monkeypatch):
    """Between the look and the opening."""
    os.mkfifo(f"{root}/pipe")
    real = os.open
    monkeypatch.setattr(
        beneath.os, "open", lambda name, *args, **more: real("pipe" if name == "file.txt" else name, *args, **more)
    )
    assert "no regular file" in refusal(root, "file.txt")


@pytest.mark.parametrize(("swapped", "path"), [("file.txt", "file.txt"), ("sub", "sub/deep.txt")])
def test_a_link_that_takes_the_place_is_not_followed(root, monkeypatch, swapped, path):
    """The path was resolved before; what is opened then follows nothing."""
    resolved = os.path.realpath

    def resolve_then_swap(given):
        found = resolved(given)
        Path(root, swapped).rename(f"{root}/moved")
        Path(root, swapped).symlink_to("moved")
        return found

    monkeypatch.setattr(beneath.os.path, "realpath", resolve_then_swap)
    assert refusal(root, path)


def test_a_race_never_opens_what_is_outside(root):
    """A link that is swapped in a loop."""
    Path(root, "x").symlink_to("file.txt")
    stop = threading.Event()

    def swap():
        targets = ["../ab/secret.txt", "file.txt"]
        while not stop.is_set():
            targets.reverse()
            Path(root, "next").symlink_to(targets[0])
            Path(root, "next").replace(f"{root}/x")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(500):
            try:
                seen.add(content(root, "x"))
            except ToolError:
                seen.add(None)
    finally:
        stop.set()
        swapper.join()
    assert b"inside" in seen
    assert seen <= {b"inside", None}


def test_devices_and_kernel_files_are_refused():
    """Also when the root is the whole system."""
    assert "belongs to the system's kernel" in refusal("/", "proc/self/environ")
    assert "belongs to the system's kernel" in refusal("/", "/dev/null")
    assert "no regular file" in refusal("/dev", "null")
    assert "is a folder" in refusal("/", "/")


def test_a_missing_file_is_answered_with_what_is_there(root):
    """Of the deepest folder that exists."""
    assert refusal(root, "fil.txt") == "there is no 'fil.txt'; the folder '.' has: file.txt, sub/"
    assert refusal(root, "sub/x/y") == "there is no 'sub/x/y'; the folder 'sub' has: deep.txt"


def test_a_folder_is_answered_with_what_is_in_it(root):
    """A folder is no file."""
    Path(root, "empty").mkdir()
    assert refusal(root, "sub") == "'sub' is a folder, not a file; the folder 'sub' has: deep.txt"
    assert refusal(root, "empty") == "'empty' is a folder, not a file; the folder 'empty' is empty"


@pytest.mark.parametrize(("count", "more"), [(MAX_NAMES, False), (MAX_NAMES + 1, True)])
def test_a_listing_has_a_limit(root, count, more):
    """Fifty names, and whether there are more."""
    folder = Path(root, "many")
    folder.mkdir()
    for number in range(count):
        (folder / f"n{number}").touch()
    text = refusal(root, "many")
    assert text.removesuffix(", and more").split("has: ")[1].count("n") == MAX_NAMES
    assert text.endswith(" and more") is more


def test_a_file_is_no_folder(root):
    """The system's reason is given, without a path of ours."""
    assert refusal(root, "file.txt/x") == "cannot read 'file.txt/x': Not a directory"


def test_no_descriptor_is_left_open(root):
    """Neither after success nor after refusals."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    content(root, "sub/deep.txt")
    for path in ("sub", "missing", "../x", "file.txt/x", "sub/missing"):
        refusal(root, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_root_is_resolved_and_is_a_folder(root, tmp_path):
    """A link to the folder is the folder; a file is none."""
    (tmp_path / "link").symlink_to(root)
    assert real_root(tmp_path / "link") == os.path.realpath(root)
    for wrong in (f"{root}/file.txt", f"{root}/missing"):
        with pytest.raises(ConfigError, match="no folder to read from"):
            real_root(wrong)


def test_a_platform_without_relative_opening_is_refused(root, monkeypatch):
    """There the walk would not be safe."""
    monkeypatch.setattr(beneath.os, "supports_dir_fd", set())
    with pytest.raises(ConfigError, match="platform"):
        real_root(root)
