"""resctrl of a machine that has it, over FUSE: two caches of 11 ways, bandwidth in steps of 10 %, four groups.

No CPU of this project's machines has it. What is written is checked by the kernel's rules (fs/resctrl/ctrlmondata.c,
rdtgroup.c): whole lines, masks of contiguous ways, known domains, tasks that live, groups as many as the hardware has.
"""

from __future__ import annotations

import errno
from pathlib import Path

from tests.support.kernel_files import KernelFile, KernelFolder

CBM_MASK, MIN_CBM_BITS, MIN_BANDWIDTH, GRAN, GROUPS = 0x7FF, 2, 10, 10, 4
DOMAINS = (0, 8)  # ids of caches need not be consecutive


class FakeResctrl:
    """Its state: schemata by group, "" for the default one, and the group of each task that is not in that.

    `refusals` are errors that it answers whatever is right: by file, as BE/schemata, or by `mkdir` and `rmdir`.
    """

    def __init__(self) -> None:
        self.schemata: dict[str, dict[str, dict[int, int]]] = {"": self._whole()}
        self.tasks: dict[int, str] = {}
        self.refused: list[str] = []
        self.refusals: dict[str, int] = {}

    def root(self) -> KernelFolder:
        """Return what is at the mount point."""
        root = self._group("")
        root.make, root.remove = self._make, self._remove
        l3 = {"cbm_mask": f"{CBM_MASK:x}\n", "min_cbm_bits": f"{MIN_CBM_BITS}\n"}
        mb = {"min_bandwidth": f"{MIN_BANDWIDTH}\n", "bandwidth_gran": f"{GRAN}\n"}
        root.children["info"] = KernelFolder(L3=_folder(l3), MB=_folder(mb))
        return root

    @staticmethod
    def _whole() -> dict[str, dict[int, int]]:
        return {"L3": dict.fromkeys(DOMAINS, CBM_MASK), "MB": dict.fromkeys(DOMAINS, 100)}

    def _make(self, name: str) -> KernelFolder:
        self._refuse("mkdir")
        if len(self.schemata) >= GROUPS:
            raise OSError(errno.ENOSPC, "no more groups")
        self.schemata[name] = self._whole()
        return self._group(name)

    def _remove(self, name: str) -> None:
        self._refuse("rmdir")
        del self.schemata[name]
        self.tasks = {task: group for task, group in self.tasks.items() if group != name}

    def _refuse(self, what: str) -> None:
        if (number := self.refusals.get(what)) is not None:
            raise OSError(number, what)

    # kernfs answers so to who has a file open whose group was removed.
    def _look(self, name: str) -> None:
        if name not in self.schemata:
            raise OSError(errno.ENODEV, "its group is removed")

    def _group(self, name: str) -> KernelFolder:
        monitored = {"llc_occupancy": "4096\n", "mbm_total_bytes": "8192\n", "mbm_local_bytes": "Unavailable\n"}
        return KernelFolder(
            schemata=KernelFile(lambda: self._show(name), lambda text: self._set(name, text)),
            tasks=KernelFile(lambda: self._listed(name), lambda text: self._move(name, text)),
            mon_data=KernelFolder(**{f"mon_L3_{domain:02}": _folder(monitored) for domain in DOMAINS}),
        )

    def _show(self, name: str) -> str:
        self._look(name)
        cache, bandwidth = self.schemata[name]["L3"], self.schemata[name]["MB"]
        masks = ";".join(f"{domain}={mask:03x}" for domain, mask in cache.items())
        return f"    MB:{';'.join(f'{domain}={each:4}' for domain, each in bandwidth.items())}\n    L3:{masks}\n"

    def _set(self, name: str, text: str) -> None:
        self._look(name)
        self._refuse(f"{name}/schemata")
        try:
            self._set_checked(name, text)
        except (ValueError, KeyError):
            self.refused.append(text)
            raise OSError(errno.EINVAL, "not taken") from None

    def _set_checked(self, name: str, text: str) -> None:
        if not text.endswith("\n"):
            raise ValueError
        for line in text.splitlines():
            resource, _, rest = line.partition(":")
            for each in rest.split(";"):
                domain, value = each.split("=")
                known = self.schemata[name][resource]
                if int(domain) not in known:
                    raise ValueError
                known[int(domain)] = _mask(int(value, 16)) if resource == "L3" else _bandwidth(int(value))

    def _listed(self, name: str) -> str:
        self._look(name)
        if name:
            return "".join(f"{task}\n" for task, group in sorted(self.tasks.items()) if group == name)
        return "1\n"

    def _move(self, name: str, text: str) -> None:
        self._look(name)
        self._refuse(f"{name}/tasks")
        task = int(text)
        if not Path(f"/proc/{task}").exists():
            raise OSError(errno.ESRCH, "no such task")
        self.tasks.pop(task, None)
        if name:
            self.tasks[task] = name


def _folder(texts: dict[str, str]) -> KernelFolder:
    return KernelFolder(**{name: KernelFile(lambda text=text: text) for name, text in texts.items()})  # type: ignore[misc]


def _mask(mask: int) -> int:
    low = mask & -mask
    if not mask or mask > CBM_MASK or mask // low & (mask // low + 1) or mask.bit_count() < MIN_CBM_BITS:
        raise ValueError
    return mask


def _bandwidth(value: int) -> int:
    if not MIN_BANDWIDTH <= value <= 100:
        raise ValueError
    return -(-value // GRAN) * GRAN
