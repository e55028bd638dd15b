"""Files that lakegc leaves on a machine are private, and no file is trusted because of its name alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.cli import main
from lakegc_assets.cli.dagster_runs import dagster_home, prepare_home
from spark_resources.errors import Refused, WrongUsage
from spark_resources.host.private_files import open_private, private_folder
from spark_resources.settings import Settings
from spark_resources.spark.class_archive import COMPLETE_AFTER_S, archive_options
from tests.support.mark_runs import environment

NOW = 1_800_000_000.0


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def open_mask() -> Iterator[None]:
    """Set a umask that lets everybody write to new files."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_private_files_and_folders_are_accessible_only_to_this_user(tmp_path: Path) -> None:
    """A file or folder that an earlier version left open to others is made private."""
    (tmp_path / "there").mkdir(mode=0o777)
    (tmp_path / "file").write_text("from before, ")
    for folder in ("there", "new"):
        assert mode(private_folder(tmp_path / folder)) == 0o700
    with open_private(tmp_path / "file") as file:
        file.write(b"and new")

    assert mode(tmp_path / "file") == 0o600
    assert (tmp_path / "file").read_text() == "from before, and new"


def test_private_files_and_folders_are_never_opened_through_a_link(tmp_path: Path) -> None:
    """A link could make lakegc act, with this user's permissions, on any file or folder of the machine."""
    (tmp_path / "target").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "folder").symlink_to(tmp_path / "target")
    (tmp_path / "file").symlink_to(tmp_path / "victim")

    with pytest.raises(Refused, match="is a symbolic link"):
        private_folder(tmp_path / "folder")
    with pytest.raises(Refused, match="is a symbolic link"):
        open_private(tmp_path / "file", os.O_TRUNC)
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_or_folder_is_refused(tmp_path: Path) -> None:
    """The owner could change its content."""
    for path in (private_folder(tmp_path / "folder"), tmp_path / "file"):
        path.touch()
        os.chown(path, 12345, 12345)
    with pytest.raises(Refused, match="another user"):
        private_folder(tmp_path / "folder")
    with pytest.raises(Refused, match="another user"):
        open_private(tmp_path / "file")


def test_a_class_archive_that_others_could_write_to_is_not_loaded(tmp_path: Path) -> None:
    """The JVM runs the classes in the archive. An archive that a JVM left open to others is made private before it gets
    its name."""
    java, spark, cache = tmp_path / "java", tmp_path / "spark", tmp_path / "cache" / "lakegc"
    java.write_bytes(b"java")
    spark.mkdir()
    options = archive_options(java, spark, folder=cache, now=NOW)
    existing = Path(options.partition("-XX:ArchiveClassesAtExit=")[2])
    existing.write_bytes(b"classes")
    os.utime(existing, (NOW - COMPLETE_AFTER_S - 1, NOW - COMPLETE_AFTER_S - 1))
    options = archive_options(java, spark, folder=cache, now=NOW)
    [archive] = cache.iterdir()

    assert "SharedArchiveFile" in options
    assert (mode(cache), mode(archive)) == (0o700, 0o600)
    archive.chmod(0o666)
    assert "SharedArchiveFile" not in archive_options(java, spark, folder=cache, now=NOW)
    archive.unlink()
    archive.symlink_to(java)
    assert "SharedArchiveFile" not in archive_options(java, spark, folder=cache, now=NOW)


def test_the_dagster_home_is_accessible_only_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Dagster home contains settings and logs of runs. An existing folder that the user named keeps its mode."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("DAGSTER_HOME", "")
    home, named = dagster_home({}), dagster_home({"DAGSTER_HOME": str(tmp_path / "named")})
    prepare_home(home)
    (tmp_path / "shared").mkdir(mode=0o770)

    assert (mode(home), mode(named), mode(home / "dagster.yaml")) == (0o700, 0o700, 0o600)
    assert mode(dagster_home({"DAGSTER_HOME": str(tmp_path / "shared")})) == 0o770


SECRETS = [
    "secret_access_key=s", "s3_secret_access_key=s", "s3_session_token=s", "azure_account_key=s", "azure_sas_token=s",
    'spark_conf={"spark.hadoop.fs.s3a.secret.key": "s"}',
]  # fmt: skip


@pytest.mark.parametrize("given", SECRETS)
def test_a_secret_on_the_command_line_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everybody on the machine can list processes and their arguments, and shells keep a history."""
    name, _, value = given.partition("=")
    with environment({}):
        assert main.run(["--set", given, "status"]) == WrongUsage.exit_code
        assert os.environ.get(f"LAKEGC_{name.upper()}") != value

    assert "LAKEGC_" in capsys.readouterr().err


def test_every_secret_setting_is_recognized_by_its_type() -> None:
    """A secret that is added later is therefore also refused on the command line."""
    assert {name for name in Settings.model_fields if Settings.is_secret(name, "")} >= {
        option.partition("=")[0] for option in SECRETS[:-1]
    }
    assert not Settings.is_secret("endpoint_url", "http://token")
    assert not Settings.is_secret("spark_conf", '{"spark.driver.memory": "4g"}')
