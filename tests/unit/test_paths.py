"""A path is found by its parts, however many paths there are."""

import pytest

from tuplegate.admission.paths import PathTree, gather_paths, split_path

PATHS = ("/", "/v1/keys", "/v1/keys/{id}", "/v1/keys/{id}/rotate", "/v1/keys/all/{what}", "/v1/keys/all/rotate/{when}")


@pytest.fixture
def tree() -> PathTree[str]:
    found: PathTree[str] = PathTree()
    for path in PATHS:
        found.add("GET", path, path)
    found.add("DELETE", "/v1/keys/{key}", "by another name")
    return found


@pytest.mark.parametrize(
    ("path", "template", "values"),
    [
        ("/", "/", {}),
        ("/v1/keys", "/v1/keys", {}),
        ("/v1/keys/k1", "/v1/keys/{id}", {"id": "k1"}),
        ("/v1/keys/{id}", "/v1/keys/{id}", {"id": "{id}"}),
        ("/v1/keys/a%2Fb", None, {}),
        ("/v1/keys/a%20b", "/v1/keys/{id}", {"id": "a b"}),
        ("/v1/keys/k1/rotate", "/v1/keys/{id}/rotate", {"id": "k1"}),
        ("/v1/keys/all/rotate", "/v1/keys/all/{what}", {"what": "rotate"}),
        ("/v1/keys/all", "/v1/keys/{id}", {"id": "all"}),
        ("/v1/keys/all/rotate/now", "/v1/keys/all/rotate/{when}", {"when": "now"}),
        ("/v1/keys/", None, {}),
        ("/v1", None, {}),
        ("/v1/keys/k1/rotate/now", None, {}),
        ("", None, {}),
        ("/v1/keys/a%00b", None, {}),
        ("/v1/keys/" + "a" * 5000, None, {}),
        ("/" * 20, None, {}),
    ],
)
def test_what_is_written_out_goes_before_a_name(
    tree: PathTree[str], path: str, template: str | None, values: dict[str, str]
) -> None:
    parts = split_path(path)
    offered = tree.find(parts)
    if template is None:
        assert not offered
        return
    names, found = offered["GET"]
    assert found == template
    assert {name: parts[place] for place, name in names} == values


def test_methods_may_name_their_parts_differently(tree: PathTree[str]) -> None:
    offered = tree.find(["", "v1", "keys", "k1"])
    assert offered["GET"][0] == [(3, "id")]
    assert offered["DELETE"] == ([(3, "key")], "by another name")


def test_gathered_paths_only_say_whether_there_is_one() -> None:
    tree = gather_paths(PATHS)
    assert tree.find(split_path("/v1/keys/k1"))
    assert not tree.find(split_path("/v1/query"))
