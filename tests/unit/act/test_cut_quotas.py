"""Quotas below a wanted one on cgroup v1, cut and restored; plain directories in place of cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Original, Places
from koordebpf.act.writer.quotas import CutQuotas
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import FileKey


def quota(path: str) -> FileKey:
    return path, CgroupFile.CPU_QUOTA


BE, POD, CONTAINER = quota("be"), quota("be/pod"), quota("be/pod/c")


class Node:
    """A best-effort directory with a pod and its container, each of four CPUs, and another pod without a limit."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.root, self.journal = folder / "cpu", journal
        for path, quota_us in (("", -1), ("be", -1), ("be/pod", 400_000), ("be/pod/c", 400_000), ("be/free", -1)):
            self.make(path, quota_us)
        places = Places({"cpu": ControllerMount(1, self.root)})
        self.cut = CutQuotas(places, journal)

    def make(self, path: str, quota_us: int, period_us: int = 100_000) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        (self.root / path / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (self.root / path / "cpu.cfs_period_us").write_text(f"{period_us}\n")

    def of(self, path: str) -> str:
        return (self.root / path / "cpu.cfs_quota_us").read_text()

    def fit(self, wanted: dict[FileKey, Value], *paths: str, search: bool = True) -> dict[FileKey, Value]:
        held, fitting = self.cut.fit(wanted, paths, 0, search=search)
        assert held.keys() == fitting.keys()
        return fitting

    def original(self, key: FileKey, quota_us: int, *owners: str) -> Original:
        inode = (self.root / key[0] / "cpu.cfs_quota_us").stat().st_ino
        return Original(f"{quota_us}\n", inode, owners)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Journal(tmp_path / "journal") as journal:
        yield Node(tmp_path, journal)


class TestFit:
    def test_what_is_below_is_cut_to_what_is_wanted_and_what_has_no_limit_stays(self, node: Node) -> None:
        cut = {POD: 200_000, CONTAINER: 200_000, quota("be/free"): None}
        assert node.fit({BE: 200_000}, "be") == cut

    def test_below_the_root_is_everything(self, node: Node) -> None:
        assert node.fit({quota(""): 200_000}, "") == {
            BE: None,
            POD: 200_000,
            CONTAINER: 200_000,
            quota("be/free"): None,
        }

    def test_without_a_search_only_those_that_were_cut_before_are_known(self, node: Node) -> None:
        assert node.fit({BE: 200_000}, "be", search=False) == {}
        node.journal.record({POD: node.original(POD, 400_000), quota("bed"): node.original(POD, 1)})
        node.journal.record({("be/pod/c", CgroupFile.CPU_SHARES): node.original(CONTAINER, 2)})
        assert node.fit({BE: 200_000}, "be", search=False) == {POD: 200_000}
        node.journal.record({BE: node.original(BE, -1)})
        assert node.fit({quota(""): 300_000}, "", search=False) == {BE: None, POD: 300_000}

    def test_what_was_cut_grows_again_up_to_what_it_had(self, node: Node) -> None:
        node.journal.record({POD: node.original(POD, 400_000)})
        node.make("be/pod", 200_000)
        assert node.fit({BE: 300_000}, "be", search=False) == {POD: 300_000}
        assert node.fit({BE: 500_000}, "be", search=False) == {POD: 400_000}

    def test_what_another_process_has_set_since_is_its_own(self, node: Node) -> None:
        node.journal.record({POD: node.original(POD, 400_000, "cpuSuppress")})
        node.make("be/pod", 200_000)
        node.cut.record(POD, 200_000)
        node.make("be/pod", 100_000)
        assert node.fit({BE: 300_000}, "be", search=False) == {POD: 100_000}
        assert node.journal.originals[POD] == node.original(POD, 100_000, "cpuSuppress")

    def test_what_is_forgotten_is_no_news(self, node: Node) -> None:
        node.journal.record({POD: node.original(POD, 400_000)})
        node.cut.record(POD, 300_000)
        node.make("be/pod", 200_000)
        node.cut.forget([POD, CONTAINER])
        assert node.fit({BE: 300_000}, "be", search=False) == {POD: 300_000}

    def test_a_wanted_one_is_cut_too_and_what_it_holds_is_no_news(self, node: Node) -> None:
        node.journal.record({POD: node.original(POD, 400_000)})
        node.cut.record(POD, 200_000)
        node.make("be/pod", 100_000)
        assert node.fit({BE: 200_000, POD: 300_000}, "be", search=False) == {POD: 200_000}
        assert node.journal.originals[POD] == node.original(POD, 400_000)
        node.make("be/pod", 200_000)
        assert node.fit({BE: 350_000}, "be", search=False) == {POD: 350_000}

    def test_a_wanted_one_is_cut_by_one_above_it_that_is_all_right(self, node: Node) -> None:
        assert node.fit({BE: 200_000, POD: 300_000}, "be/pod")[POD] == 200_000

    def test_what_another_process_sets_elsewhere_is_not_looked_at(self, node: Node) -> None:
        bed = quota("bed")
        node.make("bed", 100_000)
        node.journal.record({bed: node.original(bed, 400_000)})
        node.cut.record(bed, 200_000)
        node.fit({BE: 200_000}, "be", search=False)
        assert node.journal.originals[bed] == node.original(bed, 400_000)

    def test_a_directory_that_is_made_again_has_its_own(self, node: Node) -> None:
        original = node.original(POD, 400_000)
        node.journal.record({POD: Original(original.text, original.inode + 1)})
        node.make("be/pod", 100_000)
        assert node.fit({BE: 200_000}, "be", search=False) == {POD: 100_000}

    def test_a_longer_period_has_as_many_cpus(self, node: Node) -> None:
        node.make("be/pod", 900_000, 200_000)
        assert node.fit({BE: 200_000}, "be")[POD] == 400_000

    def test_what_cannot_be_read_or_is_gone_is_left_out(self, node: Node) -> None:
        (node.root / "be/pod/cpu.cfs_period_us").unlink()
        assert POD not in node.fit({BE: 200_000}, "be")
        assert node.fit({quota("gone"): 200_000}, "gone") == {}

    def test_keys_below_a_path(self, node: Node) -> None:
        keys = [BE, POD, CONTAINER, quota("bed/pod"), ("be/pod", CgroupFile.CPU_SHARES)]
        assert node.cut.below(["be"], keys) == [POD, CONTAINER]
        assert node.cut.below([""], keys) == [BE, POD, CONTAINER, quota("bed/pod")]


class TestRestore:
    """The quota of the pod is to be restored while that of the best-effort directory stays written."""

    @pytest.fixture
    def node(self, node: Node) -> Node:
        node.journal.record({BE: node.original(BE, -1, "cpuSuppress", "other")})
        node.make("be", 200_000)
        node.make("be/pod", 100_000)
        return node

    def test_it_is_restored_as_far_as_it_fits(self, node: Node) -> None:
        original = node.original(POD, 400_000, "cpuBurst")
        capped = node.cut.restore_capped({POD: original}, 7, {})
        assert node.of("be/pod") == "200000\n"
        assert capped.originals == {POD: node.original(POD, 400_000, "cpuSuppress", "other")}
        (change,) = capped.changes
        assert (change.old, change.new, change.result, change.now_ns) == ("100000", "200000", WriteResult.WRITTEN, 7)
        # and grows with what is above it
        node.journal.record(capped.originals)
        assert node.fit({BE: 300_000}, "be", search=False) == {POD: 300_000}

    def test_the_lowest_limit_above_it_counts(self, node: Node) -> None:
        node.journal.record({POD: node.original(POD, 400_000, "cpuBurst")})
        node.make("be/pod", 150_000)
        node.make("be/pod/c", 100_000)
        capped = node.cut.restore_capped({CONTAINER: node.original(CONTAINER, 400_000)}, 0, {})
        assert node.of("be/pod/c") == "150000\n"
        assert capped.originals[CONTAINER].owners == ("cpuBurst", "cpuSuppress", "other")

    def test_parents_are_restored_first(self, node: Node) -> None:
        node.make("be/pod/c", 100_000)
        both = {key: node.original(key, 400_000) for key in (CONTAINER, POD)}
        assert [Path(each.path).parent.name for each in node.cut.restore_capped(both, 0, {}).changes] == ["pod", "c"]

    @pytest.mark.parametrize("quota_us", [200_000, 50_000, -1])
    def test_one_that_fits_whole_or_had_no_limit_is_left_to_the_others(self, node: Node, quota_us: int) -> None:
        assert node.cut.restore_capped({POD: node.original(POD, quota_us)}, 0, {}).changes == []

    def test_one_without_a_limit_above_it_is_left_to_the_others(self, node: Node) -> None:
        both = {BE: node.original(BE, -1), POD: node.original(POD, 400_000)}
        assert node.cut.restore_capped(both, 0, {}).changes == []

    def test_so_is_one_that_another_process_wrote_since(self, node: Node) -> None:
        original = {POD: node.original(POD, 400_000)}
        assert node.cut.restore_capped(original, 0, {POD: 150_000}).changes == []
        assert len(node.cut.restore_capped(original, 0, {POD: 100_000}).changes) == 1

    def test_and_one_that_is_gone_or_made_again(self, node: Node) -> None:
        original = node.original(POD, 400_000)
        assert node.cut.restore_capped({POD: Original(original.text, original.inode + 1)}, 0, {}).changes == []
        assert node.cut.restore_capped({quota("be/gone"): original}, 0, {}).changes == []

    def test_other_files_are_left_to_the_others(self, node: Node) -> None:
        for path in ("be", "be/pod"):
            (node.root / path / "cpu.shares").write_text("2\n")
        shares, inode = ("be/pod", CgroupFile.CPU_SHARES), (node.root / "be/pod/cpu.shares").stat().st_ino
        assert node.cut.restore_capped({shares: Original("1024\n", inode)}, 0, {}).changes == []

    def test_a_limit_that_is_gone_limits_nothing(self, node: Node) -> None:
        node.make("be/pod", 100_000)
        (node.root / "be/cpu.cfs_quota_us").unlink()
        assert node.cut.restore_capped({POD: node.original(POD, 400_000)}, 0, {}).changes == []
