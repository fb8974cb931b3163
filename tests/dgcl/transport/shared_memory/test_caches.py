from dgcl.transport.shared_memory.caches import last_level_cache
from tests.samples import named


@named(
    "sizes, expected",
    {
        "kilobytes": (["48K", "1024K", "32768K"], 32 << 20),
        "megabytes": (["32K", "256M"], 256 << 20),
        "bytes": (["64"], 64),
        "unreadable": (["nonsense"], 32 << 20),
        "empty": ([""], 32 << 20),
        "none": ([], 32 << 20),
    },
)
def test_the_largest_cache_is_found(sizes: list[str], expected: int, tmp_path):
    for number, size in enumerate(sizes):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "size").write_text(f"{size}\n")
    assert last_level_cache(tmp_path) == expected


def test_this_machine_has_some():
    assert last_level_cache() > 0
