"""Several lakeFS servers in a fleet file: which settings apply, and which files and variables are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_resources.errors import WrongUsage
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.settings import Settings

NO_HOME = Path("/nonexistent")
PROD = '[servers.prod]\nendpoint_url = "https://prod"\naccess_key_id = "AKIAPROD"\n'
LAB = '[servers.lab-1]\nendpoint_url = "https://lab/api/v1"\nverify_tls = false\nca_bundle = "/etc/ca.pem"\n'
SECRETS = {
    "LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY": "prod-secret",
    "LAKEGC_SERVERS_LAB_1_SECRET_ACCESS_KEY": "lab-secret",
    "LAKEGC_SERVERS_LAB_1_ACCESS_KEY_ID": "AKIALAB",
}


def load(folder: Path, content: str, environ: dict[str, str], repository: str | None = None) -> Settings:
    (folder / "lakegc.toml").write_text(content)
    return Settings.load(environ, NO_HOME, repository=repository, directory=folder)


def test_each_server_has_its_endpoint_and_credentials_from_its_section_and_environment_variables(
    tmp_path: Path,
) -> None:
    prod, lab = LakeFSSettings.of(load(tmp_path, PROD + LAB, SECRETS))

    assert (prod.server, prod.endpoint_url, prod.access_key_id) == ("prod", "https://prod", "AKIAPROD")
    assert (lab.server, lab.endpoint_url, lab.access_key_id) == ("lab-1", "https://lab/api/v1", "AKIALAB")
    assert (prod.secret_access_key, lab.secret_access_key) == ("prod-secret", "lab-secret")
    assert (prod.verify_tls, lab.verify_tls, lab.ca_bundle) == (True, False, "/etc/ca.pem")
    shown = repr(load(tmp_path, PROD + LAB, SECRETS))
    assert "prod-secret" not in shown
    assert "lab-secret" not in shown


def test_environment_variables_of_a_server_override_its_section(tmp_path: Path) -> None:
    settings = load(tmp_path, PROD + LAB, {**SECRETS, "LAKEGC_SERVERS_LAB_1_VERIFY_TLS": "true"})

    assert LakeFSSettings.of(settings)[1].verify_tls


def test_the_only_server_of_a_fleet_file_needs_no_name(tmp_path: Path) -> None:
    (only,) = LakeFSSettings.of(load(tmp_path, PROD, {"LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY": "prod-secret"}))

    assert only.server == ""
    with pytest.raises(WrongUsage, match="'prod/lake' includes a server, 'prod', but only https://prod"):
        LakeFS(only).route("prod/lake")


def test_lakectls_settings_are_ignored_if_there_are_several_servers(tmp_path: Path) -> None:
    settings = load(tmp_path, PROD + LAB, {**SECRETS, "LAKECTL_SERVER_ENDPOINT_URL": "http://lakectl"})

    assert settings.endpoint_url is None
    assert len(LakeFSSettings.of(settings)) == 2


SECTIONS = """
brake_share = 0.5
[repositories."lake-*"]
brake_share = 0.4
[repositories.lake-a]
brake_share = 0.3
[repositories."prod/lake-*"]
brake_age = "1d"
[repositories."prod/lake-a"]
brake_share = 0.2
"""


@pytest.mark.parametrize(
    ("repository", "share", "days"),
    [
        ("prod/lake-a", 0.2, 1),  # its name
        ("lab-1/lake-a", 0.3, 7),  # its id, on any server
        ("prod/lake-b", 0.4, 1),  # patterns
        ("lab-1/lake-b", 0.4, 7),
        ("lab-1/other", 0.5, 7),
    ],
)
def test_settings_for_a_name_take_precedence_over_those_for_an_id_and_these_over_patterns(
    tmp_path: Path, repository: str, share: float, days: int
) -> None:
    settings = load(tmp_path, SECTIONS + PROD + LAB, SECRETS, repository)

    assert (settings.brake_share, settings.brake_age.days) == (share, days)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("servers = 3\n", "'servers' in .* must contain only sections: \\[servers.NAME\\]"),
        ("[servers]\nprod = 3\n", "must contain only sections"),
        ('[servers.Prod]\nendpoint_url = "https://prod"\n', r"\[servers.Prod\] .* lower-case letters"),
        ('[servers."a/b"]\nendpoint_url = "https://prod"\n', "lower-case letters"),
        ("[servers.prod]\n", r"endpoint_url in \[servers.prod\] of .* is missing: expected http"),
        (
            '[servers.prod]\nendpoint_url = "prod"\n',
            r"endpoint_url in \[servers.prod\] of .* is invalid: expected http",
        ),
        (PROD + "endpoint = 3\n", r"endpoint in \[servers.prod\] .* is not a server setting. Did you mean"),
        (PROD + 'secret_access_key = "x"\n', "is a secret.*LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY instead"),
        (PROD + 'verify_tls = "no"\n', "verify_tls .* is invalid: expected true or false"),
        (
            'endpoint_url = "http://x"\n' + PROD + LAB,
            "endpoint_url in .* is for a single lakeFS server, but .* several",
        ),
        (PROD + LAB + '[repositories."test/*"]\nbrake_share = 0.1\n', "the servers are prod, lab-1"),
        (PROD + '[repositories."prod/*"]\nbrake_share = 0.1\n', "there is only one server"),
        (PROD + LAB + '[repositories."prod/*"]\nservers = {}\n', "applies to the whole process"),
    ],
)
def test_an_invalid_fleet_file_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    with pytest.raises(WrongUsage, match=expected):
        load(tmp_path, content, {})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LAKEGC_SERVERS_TEST_ACCESS_KEY_ID": "x"}, "LAKEGC_SERVERS_TEST_ACCESS_KEY_ID doesn't belong to a server"),
        ({"LAKEGC_SERVERS_PROD_ENDPOINT_URL": "nowhere"}, "endpoint_url of server prod .* is invalid"),
        ({"LAKEGC_SERVERS_PROD_VERIFY_TLS": "maybe"}, "expected true or false"),
        ({"LAKEGC_SERVERS": "{}"}, "LAKEGC_SERVERS is not a lakegc setting"),
        ({"LAKEGC_ENDPOINT_URL": "http://x"}, "variable LAKEGC_ENDPOINT_URL is for a single lakeFS server"),
        ({"LAKEGC_SECRET_ACCESS_KEY": "x"}, "variable LAKEGC_SECRET_ACCESS_KEY is for a single lakeFS server"),
    ],
)
def test_an_invalid_environment_variable_is_refused(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    with pytest.raises(WrongUsage, match=expected):
        load(tmp_path, PROD + LAB, {**SECRETS, **variables})


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("LAKEGC_SERVERS_LAB_1_ACCESS_KEY_ID", r"server lab-1 .*: set LAKEGC_SERVERS_LAB_1_ACCESS_KEY_ID, or"),
        ("LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY", "server prod .*: set LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY"),
    ],
)
def test_the_error_about_missing_credentials_names_their_environment_variable(
    tmp_path: Path, missing: str, expected: str
) -> None:
    settings = load(tmp_path, PROD + LAB, {name: value for name, value in SECRETS.items() if name != missing})

    with pytest.raises(WrongUsage, match=expected):
        LakeFSSettings.of(settings)
