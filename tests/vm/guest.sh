#!/bin/sh
# The first thing that runs in a guest. Its own root reads each block from the host again and again (9p without a cache):
# a second mount of the same files, with one, is four times as fast, so the tests run in that.
# The checkout there is the snapshot that was made of it, with the host's .venv.
set -eu
snapshot=$1 results=$2 venv=$3

# What virtme-init leaves out of cgroup v1: what a v1 pod is frozen by, and its set of CPUs.
if [ -d /sys/fs/cgroup/memory ]; then
    for controller in freezer cpuset; do
        mkdir "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" "$controller" "/sys/fs/cgroup/$controller"
    done
fi

host=/run/koordebpf-host root=/run/koordebpf-root
mkdir -p "$host" "$root"
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000,access=any host "$host"
mount --bind "$host" "$root"
for tree in dev proc sys; do mount --rbind "/$tree" "$root/$tree"; done
mount -t tmpfs -o size=64m none "$root/run"

# Page cache of a real filesystem, which the tests fill and the kernel reclaims.
modprobe virtio_blk
modprobe ext4
while [ ! -b /dev/vda ]; do sleep 0.1; done
mount /dev/vda "$root/var/tmp"
chmod 1777 "$root/var/tmp"
mount --bind "$root/var/tmp" "$root/tmp"

# It may be in a folder that is covered by now.
mkdir -p "$root$snapshot" "$root/run/results"
mount --bind "$host$snapshot" "$root$snapshot"
mount --bind "$host$venv" "$root$snapshot/.venv"
mount --bind "$results" "$root/run/results"
ip link set lo up

# The running kernel's headers, where they would be if they were installed.
if [ -n "${HEADERS:-}" ]; then
    mkdir -p /run/koordebpf-lib/upper /run/koordebpf-lib/work
    mount -t overlay -o "lowerdir=$host/usr/lib,upperdir=/run/koordebpf-lib/upper,workdir=/run/koordebpf-lib/work" \
        overlay "$root/usr/lib"
    rm -rf "$root/usr/lib/modules/$(uname -r)"
    mkdir -p "$root/usr/lib/modules/$(uname -r)"
    ln -s "$HEADERS" "$root/usr/lib/modules/$(uname -r)/build"
    ln -s "${HEADERS%-*}-common" "$root/usr/lib/modules/$(uname -r)/source"
fi

if [ -n "${SWAP_MIB:-}" ]; then
    modprobe zram
    echo "${SWAP_MIB}M" >/sys/block/zram0/disksize
    mkswap -q /dev/zram0
    swapon /dev/zram0
fi

cd "$root"
# shellcheck disable=SC2016  # expanded by the inner shell
exec chroot . sh -c 'cd "$1" && exec .venv/bin/python -m tests.vm.guest /run/results' sh "$snapshot" \
    >"$results/guest.txt" 2>&1
