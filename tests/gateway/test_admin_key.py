"""The admin key: where it comes from, and when a run refuses to go without."""

import stat
from pathlib import Path

import pytest

from areal_agent.errors import ConfigError
from areal_agent.gateway.keys import ADMIN_KEY_ENV, AdminKey, given_admin_key

STRONG = "k3y-of-many-different-chars"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_a_random_key_does(host: str) -> None:
    assert given_admin_key(host, None, {}).place == ""
    assert given_admin_key(host, None, {ADMIN_KEY_ENV: "  "}).place == ""
    assert given_admin_key(host, None, {ADMIN_KEY_ENV: "short"}).place == f"${ADMIN_KEY_ENV}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "example.org"])
@pytest.mark.parametrize("key", ["", "areal-admin-key", "a" * 40, "abababab" * 5])
def test_elsewhere_it_must_be_chosen_and_hard_to_guess(host: str, key: str) -> None:
    """S09."""
    with pytest.raises(ConfigError, match=ADMIN_KEY_ENV) as refused:
        given_admin_key(host, None, {ADMIN_KEY_ENV: key})
    assert not key or key not in str(refused.value)
    assert given_admin_key(host, None, {ADMIN_KEY_ENV: STRONG}).place == f"${ADMIN_KEY_ENV}"


def test_a_file_holds_it_where_the_environment_does_not(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(ConfigError, match="admin_key_file: cannot read"):
        given_admin_key("127.0.0.1", file, {})
    file.write_text(" \n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is empty"):
        given_admin_key("127.0.0.1", file, {})
    file.write_text(STRONG + "\n", encoding="utf-8")
    assert given_admin_key("0.0.0.0", file, {}).place == str(file)
    assert given_admin_key("0.0.0.0", file, {ADMIN_KEY_ENV: STRONG}).place == f"${ADMIN_KEY_ENV}"


def test_a_random_key_is_written_once_for_this_user_only(tmp_path: Path) -> None:
    key, file = AdminKey(), tmp_path / "admin.key"
    key.write(file)
    key.write(file)
    assert key.place == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text(encoding="utf-8")) > 40
    assert AdminKey()._value != AdminKey()._value


def test_a_chosen_key_is_written_nowhere(tmp_path: Path) -> None:
    AdminKey(STRONG, "there").write(tmp_path / "admin.key")
    assert list(tmp_path.iterdir()) == []
