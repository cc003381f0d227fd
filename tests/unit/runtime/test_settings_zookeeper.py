"""``zookeeper.connect`` is checked before a connect: the client would end with a traceback, or wait for ever."""

import pytest

from paceline.runtime.settings import SettingsError, load_broker, load_controller


@pytest.mark.parametrize(
    "connect",
    [
        "zk",
        "zk:2181",
        "zk-1:2181, zk-2:2182/a/b",
        "[::1]:2181/a",
        "10.0.0.7:65535/",
        "zk_1.example:1//a/",
        "zk:1/a b/ü",
    ],
)
def test_a_list_of_servers_with_a_path_is_accepted(connect: str) -> None:
    assert load_controller([f"--zookeeper-connect={connect}"], {}).keys.zookeeper_connect == connect


@pytest.mark.parametrize(
    ("connect", "named"),
    [
        ("zk:port", "'zk:port'"),
        ("zk:65536", "'zk:65536'"),
        ("zk:0", "'zk:0'"),
        ("::::", "'::::'"),
        ("/paceline", "''"),
        ("zk-1:2181,,zk-2:2181", "''"),
        ("zk-1:2181;zk-2:2181", "'zk-1:2181;zk-2:2181'"),
        ("me:secret@zk:2181", "'me:secret@zk:2181'"),
        ("a zk:2181", "'a zk:2181'"),
        ("zk-1:2181/kafka,zk-2:2181/kafka", "once, after the last server"),
        ("zk:2181/a//b", "'/a//b' is not a ZooKeeper path"),
        ("zk:2181/a/../b", "'/a/../b' is not a ZooKeeper path"),
        ("zk:2181/./a", "'/./a' is not a ZooKeeper path"),
        ("zk:2181/a\tb", "is not a ZooKeeper path"),
    ],
)
@pytest.mark.parametrize("role", ["broker", "controller"])
def test_anything_else_is_refused_with_a_message(role: str, connect: str, named: str) -> None:
    arguments = [f"--zookeeper-connect={connect}", *(["--log-dirs=/d"] if role == "broker" else [])]
    with pytest.raises(SettingsError) as failure:
        load_broker(arguments, {}) if role == "broker" else load_controller(arguments, {})
    assert str(failure.value).startswith("zookeeper.connect: ")
    assert named in str(failure.value)
