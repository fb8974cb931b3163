"""Output files appear whole or not at all."""

import io
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from dgcl.cli.command_errors import CliError
from dgcl.cli.result_files import check_output, replacing
from dgcl.planner.npz import write_npz


def write(path: Path, text: str):
    with replacing(str(path)) as temporary:
        temporary.write_text(text)


def test_new_file_has_the_usual_permissions(tmp_path):
    write(tmp_path / "a.npz", "new")
    usual = tmp_path / "usual"
    usual.touch()
    assert (tmp_path / "a.npz").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a.npz").stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("old")
    with replacing(str(path)) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.suffix == ".npz"  # writers that add a missing ending find it there
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, OSError(28, "No space left on device"), KeyboardInterrupt])
def test_failure_leaves_the_old_file_and_nothing_else(tmp_path, error: type | OSError):
    path = tmp_path / "a.npz"
    path.write_text("old")

    def write_half():
        with replacing(str(path)) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises((ValueError, CliError, KeyboardInterrupt)):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.npz"]


def test_system_error_names_the_file_that_was_asked_for(tmp_path):
    with (
        pytest.raises(CliError, match=r"cannot write .*a\.npz: No space left on device"),
        replacing(str(tmp_path / "a.npz")),
    ):
        raise OSError(28, "No space left on device")


def test_symlink_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/a.npz")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a.npz").read_text() == "new"


def test_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_output("--out", str(pipe), {})
    write(pipe, "new")
    assert os.read(reader, 10) == b"new"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_whole_archive_goes_through_a_pipe(tmp_path):
    """As with ``--out /dev/stdout | ...``: by its own name, as what the link leads to has none."""
    reader, writer = os.pipe()
    name = f"/proc/self/fd/{writer}"
    check_output("--out", name, {})
    with replacing(name) as path:
        write_npz(path, {"a": np.arange(3)})
    os.close(writer)
    with os.fdopen(reader, "rb") as file, np.load(io.BytesIO(file.read())) as archive:
        assert archive["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "path, message",
    [
        (".", "is a folder"),
        ("new/", "is a folder"),
        ("nowhere/a.npz", "there is no folder .*nowhere"),
        ("file/a.npz", "there is no folder .*file"),
        ("input", "is also GRAPH"),
        ("link-to-input", "is also GRAPH"),
    ],
)
def test_output_that_cannot_work_is_refused_at_once(tmp_path, path: str, message: str):
    (tmp_path / "file").touch()
    (tmp_path / "input").touch()
    (tmp_path / "link-to-input").symlink_to("input")
    with pytest.raises(CliError, match=message):
        check_output("--out", f"{tmp_path}/{path}", {"GRAPH": str(tmp_path / "input"), "--relation": None})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_closed_folder_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CliError, match="no permission"):
        check_output("--out", str(tmp_path / "a.npz"), {})


def test_a_link_to_itself_is_no_output(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(CliError, match="leads to itself"):
        check_output("--out", str(tmp_path / "a"), {})
