"""The tree in memory: writes, numbering, and multis that happen completely or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.coordination.interface import (
    Check,
    Create,
    Delete,
    Multi,
    Operation,
    Response,
    SetData,
    WatchType,
    ZkCode,
)
from tests.support.zookeeper.data_tree import DataTree


def apply(tree: DataTree, *operations: Operation, session: int = 7, zxid: int = 100) -> Response:
    response = Response(ZkCode.OK)
    for offset, operation in enumerate(operations):
        response, _ = tree.apply(operation, session, zxid + offset)
    return response


def codes(response: Response) -> list[ZkCode]:
    return [result.code for result in response.results]


def test_versions_start_at_0_and_rise_with_every_set() -> None:
    tree = DataTree()
    response = apply(tree, Create("/a", b"x"), SetData("/a", b"y", 0), SetData("/a", b"z"))
    assert response.stat is not None
    assert (response.stat.version, response.stat.czxid, response.stat.mzxid) == (2, 100, 102)
    assert apply(tree, SetData("/a", b"", 1)).code is ZkCode.BAD_VERSION
    assert tree.get("/a").data == b"z"  # type: ignore[union-attr]


def test_null_and_empty_data_are_kept_apart() -> None:
    tree = DataTree()
    apply(tree, Create("/null", None), Create("/empty", b""))
    null, empty = tree.get("/null"), tree.get("/empty")
    assert null is not None and empty is not None
    assert (null.data, empty.data) == (None, b"")


def test_sequential_numbers_count_creations_and_survive_deletions() -> None:
    tree = DataTree()
    apply(tree, Create("/q"), Create("/q/x"), Delete("/q/x"))
    assert apply(tree, Create("/q/n_", sequential=True)).path == "/q/n_0000000001"
    stat = tree.get("/q").stat()  # type: ignore[union-attr]
    assert (stat.cversion, stat.num_children) == (3, 1)


def test_refusals_have_zookeepers_codes() -> None:
    tree = DataTree()
    apply(tree, Create("/a"), Create("/a/b"), Create("/e", ephemeral=True))
    assert apply(tree, Create("/a")).code is ZkCode.NODE_EXISTS
    assert apply(tree, Create("/x/y")).code is ZkCode.NO_NODE
    assert apply(tree, Create("/e/c")).code is ZkCode.NO_CHILDREN_FOR_EPHEMERALS
    assert apply(tree, Delete("/a")).code is ZkCode.NOT_EMPTY
    assert apply(tree, Delete("/a", 5)).code is ZkCode.BAD_VERSION
    assert apply(tree, Delete("/x")).code is ZkCode.NO_NODE
    assert apply(tree, Create("relative")).code is ZkCode.BAD_ARGUMENTS
    assert apply(tree, Create("/a//b")).code is ZkCode.BAD_ARGUMENTS
    assert apply(tree, Create("/a/../b")).code is ZkCode.BAD_ARGUMENTS


def test_a_multi_sees_its_own_earlier_operations() -> None:
    tree = DataTree()
    multi = Multi((Create("/a", None, ephemeral=True), SetData("/a", b"v", 0), Check("/a", 1)))
    response, changes = tree.apply(multi, 7, 5)
    assert response.ok
    assert [change.type for change in changes] == [WatchType.CREATED, WatchType.DATA_CHANGED]
    stat = response.results[1].stat
    assert stat is not None
    assert (stat.czxid, stat.version, stat.ephemeral_owner) == (5, 1, 7)


def test_a_failed_multi_names_its_first_bad_operation_and_changes_nothing() -> None:
    tree = DataTree()
    apply(tree, Create("/a", b"old"), Create("/a/c", ephemeral=True))
    multi = Multi((SetData("/a", b"new"), Delete("/a/c"), Create("/b"), Check("/a", 9), Create("/d")))
    response, changes = tree.apply(multi, 7, 200)
    assert response.code is ZkCode.BAD_VERSION
    assert codes(response) == [
        ZkCode.ROLLED_BACK,
        ZkCode.ROLLED_BACK,
        ZkCode.ROLLED_BACK,
        ZkCode.BAD_VERSION,
        ZkCode.ROLLED_BACK,
    ]
    assert not changes
    assert tree.paths() == ["/", "/a", "/a/c"]
    node = tree.get("/a")
    assert node is not None
    assert (node.data, node.version, node.children) == (b"old", 0, {"c"})
    assert [change.path for change in tree.remove_ephemerals(7)] == ["/a/c"]


names = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z"])
operations = st.one_of(
    st.builds(Create, names, st.binary(max_size=2), st.booleans(), st.booleans()),
    st.builds(SetData, names, st.binary(max_size=2), st.integers(-1, 2)),
    st.builds(Delete, names, st.integers(-1, 2)),
    st.builds(Check, names, st.integers(-1, 2)),
)


def snapshot(tree: DataTree) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in tree.paths():
        node = tree.get(path)
        assert node is not None
        found[path] = (node.data, node.stat(), node.children_created, tree.children(path))
    return found


@given(st.lists(operations, max_size=20), st.lists(operations, max_size=6))
def test_a_failed_multi_leaves_every_node_as_it_was(before: list[Operation], inside: list[Operation]) -> None:
    tree = DataTree()
    for zxid, operation in enumerate(before):
        tree.apply(Multi((operation,)), 1 + zxid % 2, zxid)
    old = snapshot(tree)
    response, changes = tree.apply(Multi(tuple(inside)), 1, 1000)
    if response.ok:
        assert all(result.ok for result in response.results)
    else:
        assert snapshot(tree) == old
        assert not changes
        assert sorted(change.path for change in tree.remove_ephemerals(1)) == sorted(
            path
            for path, values in old.items()
            if values[1].ephemeral_owner == 1  # type: ignore[index]
        )
