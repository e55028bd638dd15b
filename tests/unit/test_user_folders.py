"""lakegc works even if the home folder doesn't exist or can't be written to, and never shares its caches with other
users."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from lakegc_assets.cli.dagster_runs import dagster_home
from spark_resources.errors import LakegcWarning, Refused, WrongUsage
from spark_resources.host.user_folders import NO_HOME, cache_folder, home_folder, temporary_folder
from spark_resources.settings import Settings
from spark_resources.spark.session import class_archive_options

OWN_FOLDER = f"lakegc-{os.geteuid()}"

# The installation is writable, so numba must be prevented from using it.
CACHES = """
import warnings
warnings.simplefilter("error")
from spark_resources.sstable import default_decoder
print(default_decoder(1 << 40).name)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of a user whose home is a file. Nobody can write into such a home, not even
    root."""
    home, folder = tmp_path / "home", tmp_path / "tmp"
    home.touch()
    folder.mkdir()
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python caches the value of TMPDIR here
    return folder


def test_caches_fall_back_to_a_private_temporary_folder(temporary: Path) -> None:
    """Several processes of one user share the folder. Nobody else may enter it: the JVM and numba run what lies
    there."""
    folder = cache_folder()

    assert folder == cache_folder() == temporary / OWN_FOLDER / "cache"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert f"={folder}/spark-" in class_archive_options()


def test_a_link_in_place_of_the_fallback_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    """Anybody can create names among temporary files. lakegc uses another folder and continues."""
    (tmp_path / "target").mkdir()
    (temporary / OWN_FOLDER).symlink_to(tmp_path / "target")

    assert temporary_folder() == temporary_folder() != temporary / OWN_FOLDER
    assert temporary_folder().stat().st_mode & 0o777 == 0o700
    assert temporary in cache_folder().parents
    assert not list((tmp_path / "target").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_folder_is_not_used_as_the_fallback(temporary: Path) -> None:
    """The owner could change the content of the folder."""
    (temporary / OWN_FOLDER).mkdir()
    os.chown(temporary / OWN_FOLDER, 12345, 12345)

    assert temporary_folder() != temporary / OWN_FOLDER
    assert temporary_folder().stat().st_uid == os.geteuid()


def test_compiled_loops_work_without_a_home_folder(temporary: Path) -> None:
    """If neither the home nor the installation can be written to, the files go to the fallback without a warning."""
    environ = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator,UserWideCacheLocator"}
    ended = subprocess.run(
        [sys.executable, "-c", CACHES], env=environ, cwd=temporary, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    cache = temporary / OWN_FOLDER / "cache"

    assert (ended.stdout, ended.stderr) == ("vectorized\n", "")
    assert "numba" in {path.name for path in cache.iterdir()}
    assert [path.name for path in temporary.iterdir()] == [OWN_FOLDER]


def test_dagsters_history_falls_back_to_a_temporary_folder_with_a_warning(temporary: Path) -> None:
    """Temporary files are lost when the machine restarts, so the warning says what to set."""
    with pytest.warns(LakegcWarning, match=r"home folder isn't writable\. To keep the history, set DAGSTER_HOME"):
        home = dagster_home({})

    assert home == temporary / OWN_FOLDER / "dagster"
    assert home.stat().st_mode & 0o777 == 0o700


def test_dagsters_history_is_kept_in_a_writable_home_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback is only for users without another place. A link there is refused, because it may be an attack."""
    home = temporary / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = dagster_home({})
    folder.rmdir()
    folder.symlink_to(temporary)

    assert folder == home / "data" / "lakegc" / "dagster"
    with pytest.raises(Refused, match="is a symbolic link"):
        dagster_home({})


def test_a_dagster_home_that_cannot_be_created_is_refused_with_its_path(temporary: Path) -> None:
    """A folder that the user named is never replaced by a different one."""
    (temporary / "file").touch()

    with pytest.raises(WrongUsage, match=r"DAGSTER_HOME is .*/file/dagster, which can't be created"):
        dagster_home({"DAGSTER_HOME": str(temporary / "file" / "dagster")})


def test_settings_load_without_a_home_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home there is no lakectl file, so only environment variables apply. No folder named ~ is created."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.chdir(temporary)
    environ = {"LAKEGC_ENDPOINT_URL": "http://lake"}
    in_a_file = Settings.load(environ, home_folder())
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)  # as in a container whose user has no entry in passwd
    without = Settings.load(environ, home_folder())

    assert in_a_file.endpoint_url == without.endpoint_url == "http://lake"
    assert home_folder() == NO_HOME
    assert cache_folder() == temporary / OWN_FOLDER / "cache"
    assert not Path("~").exists()
