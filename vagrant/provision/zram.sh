#!/usr/bin/env bash
# zram.sh MIB: have swap of this size in compressed memory, now and after each boot.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

mib=$1
put /usr/local/sbin/koordebpf-zram 755 <<'EOF'
#!/bin/sh
# koordebpf-zram MIB
set -eu
if [ ! -b /dev/zram0 ]; then
    modprobe zram
    # udev makes the node, a moment later.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -b /dev/zram0 ] && break
        sleep 0.5
    done
fi
wanted=$(($1 * 1048576)) size=$(cat /sys/block/zram0/disksize)
if grep -q '^/dev/zram0 ' /proc/swaps; then
    [ "$size" -ne "$wanted" ] || exit 0
    swapoff /dev/zram0
fi
if [ "$size" -ne 0 ]; then
    udevadm settle 2>/dev/null || true # it is busy while udev reads it
    echo 1 >/sys/block/zram0/reset
fi
echo "$wanted" >/sys/block/zram0/disksize
mkswap -q /dev/zram0
swapon -p 100 /dev/zram0
echo "changed: swap is on, $1 MiB in zram"
EOF
put /etc/systemd/system/koordebpf-zram.service <<EOF
[Unit]
Description=Swap in compressed memory
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/koordebpf-zram $mib

[Install]
WantedBy=multi-user.target
EOF
systemctl enable --quiet koordebpf-zram.service
/usr/local/sbin/koordebpf-zram "$mib"
