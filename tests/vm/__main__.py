"""`python -m tests.vm [first | rest | 6.1 | 6.1-v1 …]`: boot them, print what went wrong, end with the counts.

The closing line is `N passed, N failed, N skipped`; the exit code is 0 only if nothing failed and something passed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import msgspec

from tests import ledger
from tests.counted import twice
from tests.vm.compiled import obtain_compiled
from tests.vm.kernel_log import stacks
from tests.vm.kernels import CannotHave, Kernel, obtain
from tests.vm.machine import ROOT, boot, end_children, make_snapshot
from tests.vm.matrix import SERIES, Variant, chosen
from tests.vm.verdict import STATES, Verdict, judge

RESULTS = ROOT / ".make" / "vm"
_LOOK_S = 1.0
_BENCH_MIB = 2560  # a hog needs half of it
_LAST_LINES = 25
_MOST_LINES = 400  # of stacks
_OF_THE_DEAD = ("guest.txt", "pytest.txt", "monitor.txt", "console.txt", "dmesg.txt")
_started_s = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress."""
    minutes, seconds = divmod(int(time.monotonic() - _started_s), 60)
    print(f"  {minutes:02}:{seconds:02}  {text}", flush=True)


def prepared(variants: Sequence[Variant], *, renew: bool) -> dict[str, Kernel]:
    """Obtain the kernels, by series, and copy the checkout."""
    if " " in str(ROOT):
        raise CannotHave(
            f"a machine cannot be started from {ROOT}: virtme-ng splits a path at its space; move the checkout"
        )
    wanted = {variant.series for variant in variants}
    with_headers = {variant.series for variant in variants if variant.needs_headers}
    kernels = {
        name: obtain(SERIES[name], say, with_headers=name in with_headers, renew=renew)
        for name in SERIES
        if name in wanted
    }
    say("snapshot of the checkout")
    make_snapshot(RESULTS / "snapshot")
    return kernels


def kernel_of(variant: Variant, kernels: Mapping[str, Kernel]) -> Kernel:
    """Return the kernel that a machine boots: Debian's of its series, or one that is compiled now if it is not yet."""
    debian = kernels[variant.series]
    return obtain_compiled(debian, ROOT / "tests/vm" / variant.config, say) if variant.config else debian


def measure(variants: Sequence[Variant], minutes: float, *, renew: bool) -> bool:
    """Run benchmarks in one machine after the other, and print what they say; return whether all came to their end."""
    kernels = prepared(variants, renew=renew)
    for variant in variants:
        results = RESULTS / variant.folder
        kernel = kernel_of(variant, kernels)
        boot(variant, kernel, RESULTS / "snapshot", results, minutes, partial(_say_of, variant))
        for name in ("guest.txt", "bench.txt"):
            print((results / name).read_text() if (results / name).exists() else "")
    return all((RESULTS / variant.folder / "bench.json").exists() for variant in variants)


class Slots:
    """Lets as many machines run at a time as this process may use CPUs, at most `jobs`.

    Another process may change that at any time: with the affinity of this one's main thread (sched_setaffinity(2)).
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._running = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot, once there is one."""
        with self._changed:
            while self._running >= min(self._jobs, len(os.sched_getaffinity(os.getpid()))):
                self._changed.wait(_LOOK_S)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()


def run(variants: Sequence[Variant], jobs: int, minutes: float, *, renew: bool) -> dict[str, Verdict]:
    """Boot every machine, return what each is found to be."""
    kernels = prepared(variants, renew=renew)
    is_over = threading.Event()
    slots = Slots(jobs)

    def one(variant: Variant) -> Verdict:
        with slots.one():
            return booted(variant)

    def booted(variant: Variant) -> Verdict:
        if is_over.is_set():
            raise CannotHave("interrupted")
        results = RESULTS / variant.folder
        say_of_it = partial(_say_of, variant)
        kernel = kernel_of(variant, kernels)
        cpu_s = boot(variant, kernel, RESULTS / "snapshot", results, minutes, say_of_it)
        verdict = judge(results)
        # Emulated, on a machine that others use too; a kernel that crashed says so.
        if verdict.is_only_silent and not is_over.is_set():
            explain(variant, verdict, results)
            say_of_it("once more, its CPUs emulated by one thread")
            variant = msgspec.structs.replace(variant, has_one_thread=True)
            cpu_s += boot(variant, kernel, RESULTS / "snapshot", results, minutes, say_of_it)
            verdict = judge(results)
        verdict = msgspec.structs.replace(verdict, cpu_s=round(cpu_s, 1))
        (results / "verdict.json").write_bytes(msgspec.json.encode(verdict))
        say_of_it(summary_line(counts([verdict])))
        return verdict

    with ThreadPoolExecutor(jobs) as machines:
        try:
            return dict(zip((variant.title for variant in variants), machines.map(one, variants), strict=True))
        except BaseException:
            is_over.set()
            machines.shutdown(wait=False, cancel_futures=True)
            end_children()
            raise


def with_environment(variants: Sequence[Variant], given: Sequence[str]) -> tuple[Variant, ...]:
    """Return the machines with more variables, each NAME=VALUE.

    Raises:  CannotHave: one has no name.
    """
    more = dict(each.partition("=")[::2] for each in given)
    if "" in more:
        raise CannotHave(f"--set needs NAME=VALUE: {', '.join(given)}")
    return tuple(msgspec.structs.replace(each, environment={**each.environment, **more}) for each in variants)


def _say_of(variant: Variant, text: str) -> None:
    say(f"{variant.title}: {text}")


def counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return the three numbers by their words."""
    return {state: sum(verdict.count(state) for verdict in verdicts) for state in STATES}


def summary_line(numbers: Mapping[str, int]) -> str:
    """Return the line that ends every run of tests."""
    return ", ".join(f"{count} {state}" for state, count in numbers.items())


def explain(variant: Variant, verdict: Verdict, results: Path) -> None:
    """Print what went wrong in one machine, and where all of it stands."""
    if not verdict.count("failed"):
        return
    print(f"\n== {variant.title} ({verdict.release or 'did not report'})")
    for test in verdict.tests:
        if test.state == "failed":
            print(f"\n-- {variant.title}: {test.name} failed after {test.seconds} s")
            print(indent(last(test.text)))
    for wrong in verdict.wrong:
        print(f"\n-- {variant.title}: {wrong}")
    for name in ("guest.txt", "dmesg.txt") if verdict.release else _OF_THE_DEAD:
        path = results / name
        if path.exists() and path.stat().st_size:
            print(f"\n-- {variant.title}: the last of {name}")
            print(indent(last(path.read_text(errors="replace"))))
    console, emulator = results / "console.txt", results / "qemu.txt"
    if not verdict.release and console.exists():
        print(f"\n-- {variant.title}: its stacks")
        print(indent("\n".join(stacks(console.read_text(errors="replace"))[:_MOST_LINES])))
    if not verdict.release and emulator.exists():
        print(f"\n-- {variant.title}: QEMU's threads")
        print(indent("\n".join(emulator.read_text().splitlines()[:_MOST_LINES])))
    print(f"\n-- {variant.title}: all of it is in {results}")


def last(text: str) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def failures(variant: Variant, verdict: Verdict) -> list[str]:
    """Return one line for each thing that went wrong in a machine."""
    named = [f"{variant.title}: {test.name}" for test in verdict.tests if test.state == "failed"]
    return named + [f"{variant.title}: {wrong}" for wrong in verdict.wrong]


def unsteady(variant: Variant, verdict: Verdict) -> dict[str, str]:
    """Return each test that failed in a machine and passed when it was tried again, with how it failed."""
    again = [test for test in verdict.tests if test.state == "passed" and test.tries > 1]
    return {f"{variant.title}: {test.name}": test.cause for test in again}


def modules_of(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return the modules of which a test passed in a machine and none failed, with that machine's title."""
    found = dict[str, str]()
    for title, verdict in verdicts.items():
        states = {(test.node.partition("::")[0], test.state) for test in verdict.tests}
        found |= {module: title for module, state in states if state == "passed" and (module, "failed") not in states}
    return found


def indent(text: str) -> str:
    """Return the text, each line set in."""
    return "\n".join(f"     {line}" for line in text.splitlines())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("which", nargs=-1)
@click.option("--jobs", default=2, show_default=True, help="Machines at a time, at most one on each CPU.")
@click.option("--minutes", default=25.0, show_default=True, help="A machine that takes longer is ended.")
@click.option("--renew", is_flag=True, help="Ask Debian for newer releases of the kernels.")
@click.option("--tests", metavar="ARGUMENTS", help="pytest's arguments, in place of all tests: a file, -k WORDS.")
@click.option("--bench", metavar="ARGUMENTS", help="tests.bench's arguments, to measure and test nothing: burst.")
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="A variable of the tests' environment.")
@click.option("--disk", default=0, metavar="MIB", help="With --bench: MiB a second that its disk reads and writes.")
@click.option("--memory", default=_BENCH_MIB, metavar="MIB", show_default=True, help="With --bench: its memory.")
@click.option("--icount", is_flag=True, help="With --bench: a nanosecond of its figures is an instruction.")
@click.option("--counts", "counts_path", type=click.Path(path_type=Path), help="Write the counts here, as JSON.")
@click.option("--list", "only_list", is_flag=True, help="Name the machines.")
def main(
    which: tuple[str, ...],
    jobs: int,
    minutes: float,
    renew: bool,
    tests: str | None,
    bench: str | None,
    given: tuple[str, ...],
    disk: int,
    memory: int,
    icount: bool,
    counts_path: Path | None,
    only_list: bool,
) -> None:
    """Run the host tests in virtual machines: WHICH are kernels (6.1), machines (6.1-v1), first or rest."""
    # A signal to this process ends its machines.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        variants = chosen(list(which))
        if tests is not None:
            variants = tuple(msgspec.structs.replace(variant, tests=tuple(shlex.split(tests))) for variant in variants)
        variants = with_environment(variants, given)
        if only_list:
            print("\n".join(variant.folder for variant in variants))
            return
        if bench is not None:
            changes = {"bench": tuple(shlex.split(bench)), "has_instruction_clock": icount, "memory_mib": memory}
            changes |= {"disk_mib_s": disk}
            changes |= {"cpus": 1} if icount else {}  # a second one spins for minutes at the boot
            variants = tuple(msgspec.structs.replace(variant, **changes) for variant in variants)
            sys.exit(not measure(variants, minutes, renew=renew))
        verdicts = run(variants, jobs, minutes, renew=renew)
    except CannotHave as error:
        verdicts, failed, again = {}, [f"cannot: {error}"], {}
        total = {"passed": 0, "failed": 1, "skipped": 0}
    else:
        for variant in variants:
            explain(variant, verdicts[variant.title], RESULTS / variant.folder)
        total = counts(list(verdicts.values()))
        failed = [line for variant in variants for line in failures(variant, verdicts[variant.title])]
        again = {
            name: cause for variant in variants for name, cause in unsteady(variant, verdicts[variant.title]).items()
        }
    passed = {title: verdict.cpu_s for title, verdict in verdicts.items() if not verdict.count("failed")}
    there = modules_of(verdicts) if tests is None else {}
    if counts_path is None:  # with it the caller, which runs more than this, judges them
        unsure = [f"needed a second try twice: {name}" for name in twice(again)]
        total, failed = {**total, "failed": total["failed"] + len(unsure)}, failed + unsure
        ledger.record(passed if tests is None else {}, again, there)
    (counts_path or RESULTS / "counts.json").write_bytes(
        msgspec.json.encode({**total, "names": failed, "unsteady": again, "items": passed, "in_machines": there})
    )
    # The end of the output alone says what it is about.
    print("", *ledger.second_tries(again), sep="\n")
    print(*(f"failed: {line}\n" for line in failed), summary_line(total), sep="")
    sys.exit(int(bool(total["failed"]) or any(not verdict.count("passed") for verdict in verdicts.values())))


if __name__ == "__main__":
    main()
