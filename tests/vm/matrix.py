"""What is booted: kernels, and what is different about each machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.vm.guest import Kind
from tests.vm.kernels import SERIES, CannotHave


class Variant(msgspec.Struct, frozen=True):
    """One machine: a kernel, how it is booted, and with what the tests run in it."""

    series: str
    name: str
    boot_options: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    config: str = ""  # of tests/vm, with which its kernel is compiled from Debian's source; none: Debian's kernel
    cpus: int = 1
    threads: int = 1  # of a core
    memory_mib: int = 1536  # a test fills it
    has_one_thread: bool = False  # of QEMU for all CPUs: tests/vm/machine.py says why
    has_instruction_clock: bool = False  # each nanosecond is an instruction: tests/vm/machine.py says how
    numa_nodes: int = 1
    numa_mib: tuple[int, ...] = ()  # of each NUMA node; none: as much of `memory_mib` as the others
    swap_mib: int = 0
    disk_mib_s: int = 0  # of the disk that the tests' files are on; 0: as fast as the host writes to its memory
    needs_headers: bool = False
    tests: tuple[str, ...] = ()  # pytest's arguments
    bench: tuple[str, ...] = ()  # tests.bench's, in place of the tests

    @property
    def title(self) -> str:
        """Return its name in messages and tables, and with a hyphen its folder's."""
        return f"{self.series} {self.name}"

    @property
    def folder(self) -> str:
        """Return the name of the folder that its results are in."""
        return self.title.replace(" ", "-")

    @property
    def kind(self) -> Kind:
        """Return what it has to be inside, so that no boot option is given in vain."""
        return Kind(
            cgroup_version=1 if self.name == "v1" else 2,
            numa_nodes=self.numa_nodes,
            has_psi=_NO_PSI not in self.boot_options,
            has_swap=self.swap_mib > 0,
            has_smt=self.threads > 1,
        )


_ROOT = Path(__file__).parents[2]
_NO_PSI = "psi=0"


def _host(*names: str) -> tuple[str, ...]:
    return tuple(str(path.relative_to(_ROOT)) for name in names for path in sorted(_ROOT.glob(f"tests/host/{name}.py")))


# What the kernel does and says. An emulated second costs five to ten: starting the agent alone takes ten, and what it
# does afterwards is the same on every kernel. Only where that is not so a test runs on more than one.
_SIGNALS = _host("test_signals*", "test_psi_live")
_CGROUPS = _host("test_cgroupfs_live", "test_collector")
# How cgroups die and give memory back: with cgroup v2 on the oldest and the newest kernel, with v1 on the live one. A
# chain of 2,300 cgroups takes a minute of an emulated CPU, and dies on the live kernel as well.
_LONG_CHAIN = "tests/host/test_kill_nested.py::test_a_process_at_the_end_of_a_chain_dies[v2-2300]"
_DEATHS = (
    *_host("test_memory_comes_back", "test_kill", "test_kill_nested"),
    f"--deselect={_LONG_CHAIN}",
)
_SHARE = "tests/host/test_shares.py::test_derived_pressure_is_what_the_kernel_shows"

# Each takes a quarter of a minute or more: what is lost is the programs' own business, the newest kernel has it; kswapd
# is waited for on the oldest and with two NUMA nodes; the machine is filled on the oldest and the newest.
_LOST_ENDS = "tests/host/test_signals_lost_ends.py::test_ends_that_are_passed_over_leave_no_task_stalled"
_KSWAPD = "tests/host/test_signals_machine.py::test_every_run_of_kswapd"
_FILLED = "tests/host/test_signals_machine.py::test_a_machine_without_memory"
_PRESSED = "test_a_reclaimed_pod_is_evicted_where_the_others_wait_for_memory"
_FROZEN = "tests/host/test_faults_frozen.py::test_its_successor_finishes_the_kill_and_audits_it[frozen]"

# Agents on cgroup v2, on one kernel: of each file the cases that read, write or wait for what cgroup v2 has in other
# files. An agent's start is a third of each, and what a killed one leaves is tried on the oldest kernel. The first four
# have tenants who mean no good.
_AGENT = tuple(
    f"tests/host/test_{case}"
    for case in (
        "grace.py::test_who_was_evicted_and_does_not_end_is_killed_before_another_pod_is_evicted",
        "fruitless.py::test_memory_that_outlives_every_process_of_the_victim[True]",
        "pod_identity.py::test_a_pod_that_claims_another_ones_uid_does_not_have_it_killed[forged mirror pod]",
        "kernel_memory_agent.py::test_the_pod_that_holds_the_kernels_memory_is_evicted[sockets]",
        "demo.py::test_a_hog_is_evicted_before_the_eyes_of_the_user",
        "bursts.py::test_only_the_hog_is_evicted",
        "agent_api.py::test_the_server_is_asked_for_the_pod_with_the_most_by_its_uid",
        "agent_api.py::test_the_audit_line_says_who_and_how_long_each_step_took",
        "agent_api.py::test_an_eviction_and_the_memory_that_it_freed_are_counted_once",
        "agent_api.py::test_the_event_is_koordinators",
        "agent_process.py::test_a_pods_first_stall_has_its_name",
        "lost_api_server.py::test_best_effort_pods_are_killed_by_cgroup_and_the_audit_says_why[cgroup]",
        "faults_audit.py::test_an_eviction_does_not_wait_for_a_full_disk",
        "ladder_agent.py::test_a_brake_slows_who_grows_and_is_taken_off_when_it_is_over",
        "ladder_agent.py::test_what_was_not_enough_leads_to_the_end_and_no_pod_stays_frozen[Rung.KILL]",
    )
)
# What the dead man's switch counts: by PSI, which the live kernel does not let it trace.
_DEAD_MAN = tuple(
    f"tests/host/test_dead_man.py::test_{case}"
    for case in (
        "who_was_chosen_is_killed_with_all_its_processes_and_no_one_else",
        "tasks_that_wait_for_page_cache_and_reclaim_none_are_counted",
        "a_pod_that_waits_at_its_own_limit_is_not_counted[None]",
        "no_stall_is_counted_twice",
    )
)

# Those that share CPUs between pods.
_AGENT_OF_CPUS = tuple(
    f"tests/host/test_{case}"
    for case in (
        "suppress_agent.py::test_the_quota_is_held_reported_and_restored",
        "stand_by.py::test_it_takes_over_and_no_pod_is_released[15]",
        "cpu_evict_live.py::test_best_effort_pods_that_starve_are_fewer_and_then_it_stops",
    )
)

# memory.reclaim takes a swappiness since 6.11: one kernel before, and one since.
_RECLAIMER = "tests/host/test_reclaimer.py::TestThisKernel"

# What is written to cgroups of v2. The command that restores them starts three times in each case of an agent that is
# killed: here it is killed after the ninth of 16 writes, and in the middle of one.
_KILLED = "tests/host/test_writer_killed.py::test_"
_WRITES = (
    *_host("test_writer_*", "test_suppress_live", "test_ladder_live"),
    *(f"--deselect={_KILLED}every_byte_comes_back_wherever_it_was_killed[{writes}]" for writes in (1, 3, 6, 12, 16)),
    *(f"--deselect={_KILLED}every_byte_comes_back_from_each_write_of_a_story[{when}]" for when in ("before", "after")),
    *(f"--deselect={_KILLED}a_{case}" for case in ("line_that_was_being_written_is_of_no_file",
                                                   "journal_that_may_not_be_read_is_reported")),
    "--deselect=tests/host/test_writer_slices.py::"
    "test_other_values_than_its_own_are_corrected_as_seldom_as_elsewhere",
    # Over fakes, which are the same on every kernel.
    *(f"--deselect=tests/host/test_writer_fake_files.py::{name}::" for name in ("TestNumbers", "TestIoCost")),
    *(f"--deselect=tests/host/test_writer_every_sysctl.py::{name}::" for name in ("TestStandIn", "TestFeature")),
)  # fmt: skip

# Agents with QoS strategies, whose files have other names and rules on v2: what is written, followed and restored, and
# what a killed one leaves. How long a kill takes where limits are lifted is seen on the live kernel.
_LIFTED = "tests/host/test_lifted.py"
_QOS = (
    _LIFTED,
    f"--deselect={_LIFTED}::test_memory_is_back_no_later_with_limits_lifted",
    *(
        f"tests/host/test_{case}"
        for case in (
            "memory_qos_live.py::test_a_class_that_is_switched_off_and_a_request_that_changes_are_followed",
            "memory_qos_live.py::test_a_killed_agent_leaves_protection_that_the_next_one_restores",
            "cpu_burst_live.py::test_a_throttled_container_has_more_up_to_its_bound_until_the_agent_stops",
            "cpu_burst_live.py::test_kubelet_can_write_a_smaller_limit_while_unused_quota_is_saved_up",
            "cpu_burst_live.py::test_a_killed_agent_leaves_quotas_that_the_next_one_restores",
            "block_io_agent.py::test_best_effort_pods_are_limited_and_others_not_until_the_agent_stops",
            "block_io_agent.py::test_a_pod_has_the_limits_of_its_annotation_for_as_long_as_it_asks",
            "block_io_agent.py::test_a_killed_agent_leaves_limits_that_the_next_one_restores",
        )
    ),
    *_host("test_memory_qos_felt"),
)

# What none of Debian's kernels has.
_NOT_DEBIANS = (
    *_host("test_core_sched"),
    "tests/host/test_process_rights.py::test_a_cookie_is_given_to_another_users_process_with_what_the_component_gives",
    "tests/host/test_writer_io_weights.py::test_a_latency_target",
)

_CPU_COMES_BACK = "tests/host/test_bcc.py::test_a_cpu_that_comes_back_is_heard_through_perf_buffers"
_RECLAIM = "tests/host/test_proactive_reclaim.py::test_"
_KATALYST_MIB = (9216, 5632)

# The other machines run what is about them. A boot and the start of pytest cost 20 s each: a test that needs no machine
# of its own runs in another one.
MATRIX = (
    # It runs before the host tests: what it leaves out, those compile for the machines after it. Here that would take a
    # minute.
    Variant(
        "6.1",
        "v2",
        tests=(
            *_SIGNALS,
            *_CGROUPS,
            *_host("test_files_backend"),
            _RECLAIMER,
            *(f"--deselect={test}" for test in (_LOST_ENDS, _KSWAPD, _FILLED)),
        ),
    ),
    # What a killed agent leaves depends on how its programs attach: this is the oldest way, the live kernel has the
    # newest. Every machine is searched after its tests for what they left. Before cgroup.kill (5.14) it may also leave
    # a pod frozen.
    Variant(
        "5.10",
        "v2",
        tests=(
            *_SIGNALS,
            *_CGROUPS,
            *_DEATHS,
            f"{_SHARE}[limit thrash]",
            *_host("test_left_behind", "test_throttle_events"),
            _FROZEN,
            f"--deselect={_LOST_ENDS}",
        ),
    ),
    # What an agent does, and what may go wrong on a node, on cgroup v2. An agent beside a storm takes minutes of one
    # emulated CPU: not in here. The demo asks for 2 GiB, and a burst takes seconds.
    Variant(
        "6.12",
        "v2",
        memory_mib=2560,
        environment={"KOORDEBPF_BURSTS": "10"},
        tests=(
            *_AGENT,
            *_host("test_signals", "test_faults", "test_suspend"),
            "tests/host/test_page_cache.py::test_a_latency_sensitive_pod_keeps_its_file_and_all_is_restored",
            *_host("test_project_quota"),  # the live kernel counts none
            f"tests/host/test_katalyst_inner_live.py::{_PRESSED}",
            "tests/host/test_maps_full.py::test_a_full_ring_loses_records_and_no_count",
            "tests/host/test_maps_full.py::test_more_cgroups_than_a_scan_can_hold",
            "tests/host/test_refused.py::test_records_of_another_layout_are_passed_over_and_nothing_stays_attached",
            "tests/host/test_refused.py::test_the_best_backend_is_taken_and_its_quality_is_known",
        ),
    ),
    Variant(
        "7",
        "v2",
        tests=(
            *_SIGNALS,
            *_CGROUPS,
            *_DEATHS,
            *_host("test_shares", "test_throttle_events"),
            *_DEAD_MAN,
            f"--deselect={_KSWAPD}",
        ),
    ),
    Variant(
        "6.1",
        "v1",
        boot_options=("SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",),  # virtme-init mounts what it asks systemd for
        cpus=3,  # best-effort pods keep two of them: only where there are more can those be held by a set
        tests=(
            *_host("test_signals", "test_signals_cgroups", "test_signals_scan", "test_cgroupfs_live"),
            "tests/host/test_collector.py::test_files_report_what_the_scan_reports",
            *_host("test_successor_cpuset"),
        ),
    ),
    # Two NUMA nodes, and no PSI, of which what is about nodes needs none.
    Variant(
        "6.12",
        "numa-no-psi",
        boot_options=(_NO_PSI,),
        cpus=2,
        numa_nodes=2,
        tests=(
            *_host("test_signals_scan", "test_no_psi", "test_node_info"),
            _KSWAPD,
            "tests/host/test_collector.py::test_files_report_what_the_scan_reports",
            "tests/host/test_shares.py::test_a_derived_share_is_the_union_of_the_recorded_stalls",
        ),
    ),
    # Katalyst's watermark of a NUMA node is 4 GiB in its zone Normal. Of the first node's memory 2 GiB are of another
    # zone. Of all that QEMU takes what the guest touches: 4.5 GiB.
    Variant(
        "6.12",
        "numa",
        cpus=2,
        memory_mib=sum(_KATALYST_MIB),
        numa_nodes=len(_KATALYST_MIB),
        numa_mib=_KATALYST_MIB,
        tests=_host("test_katalyst_numa", "test_node_info"),
    ),
    # With swap the limits of most tests kill no process. Then Vagrant's scripts that give a machine swap, and of its
    # stories the one that needs it: with little memory its node is small. Then, without swap, the one whose node is the
    # machine. Last what locks the kernel down, which no
    # other program outlives.
    Variant(
        "6.12",
        "swap",
        swap_mib=256,
        memory_mib=896,
        environment={"KOORDEBPF_OWN_MACHINE": "1"},
        tests=(
            "tests/host/test_signals_scan.py::test_swap_equals_the_files",
            *_host("test_swap_ins", "test_silent_probe"),
            f"{_RECLAIM}idle_page_cache_of_a_best_effort_pod_is_taken_and_no_other_pods[--enforce]",
            *_host("test_proactive_swap"),
            "tests/host/test_provision.py::test_swap_in_a_file",
            "tests/host/test_provision.py::test_swap_in_compressed_memory",
            "tests/host/test_scenarios.py::test_swap_death",
            "tests/host/test_scenarios.py::test_a_pod_feels_the_strategy[system-config]",
            *_host("test_locked_down"),
        ),
    ),
    # What is written to cgroups of v2: a set of CPUs needs two, and with one there is nothing to share between pods.
    Variant("6.12", "writes", cpus=2, has_one_thread=True, tests=(*_WRITES, _RECLAIMER, *_AGENT_OF_CPUS)),
    # QoS strategies: what they write on v2, with two CPUs for those that share CPUs.
    Variant("6.12", "qos", cpus=2, environment={"KOORDEBPF_PAIR_S": "2"}, tests=_QOS),
    # Compiling takes a minute of an emulated CPU in each process.
    Variant(
        "6.1",
        "bcc",
        environment={"KOORDEBPF_BACKEND": "bcc"},
        needs_headers=True,
        # It counts fds and comes before what is compiled once for all others and stays open.
        tests=(
            *_host("test_bcc"),
            f"--deselect={_CPU_COMES_BACK}",
            *_host("test_signals", "test_signals_cgroups", "test_signals_filters", "test_signals_waits"),
        ),
    ),
    # Nothing else runs where a CPU goes offline and online: an emulated one that stays offline ends the machine.
    Variant(
        "6.1",
        "hotplug",
        needs_headers=True,
        cpus=2,
        tests=(
            _CPU_COMES_BACK,
            *_host("test_hotplug"),
        ),
    ),
    # Core scheduling, with two threads a core, and io.latency. Last: its kernel is compiled beside the others.
    Variant("6.12", "sched", config="sched.config", cpus=2, threads=2, tests=_NOT_DEBIANS),
)


def chosen(words: list[str]) -> tuple[Variant, ...]:
    """Return what the words ask for: nothing is everything.

    `first` is the one that takes least, `rest` the others; `6.1` is every machine with that kernel.
    Raises:  CannotHave: a word means nothing.
    """
    picked: list[Variant] = []
    for word in words or ["all"]:
        match word:
            case "all":
                found = MATRIX
            case "first":
                found = MATRIX[:1]
            case "rest":
                found = MATRIX[1:]
            case _:
                found = tuple(variant for variant in MATRIX if word in {variant.series, variant.folder, variant.title})
        if not found:
            known = [*SERIES, *(variant.folder for variant in MATRIX)]
            raise CannotHave(f"no kernel or machine {word!r}; there are: first, rest, {', '.join(known)}")
        picked += [variant for variant in found if variant not in picked]
    return tuple(picked)
