#!/usr/bin/env bash
# swap.sh MIB [FILE]: have swap of this size in a file, now and after each boot.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

mib=$1 file=${2:-/swapfile}
if [ ! -e "$file" ] || [ "$(stat -c %s "$file")" -ne $((mib << 20)) ]; then
    grep -q "^$file " /proc/swaps && swapoff "$file"
    rm -f "$file"
    # A file with holes cannot be swapped to.
    fallocate -l "${mib}M" "$file"
    chmod 600 "$file"
    mkswap -q "$file"
    tell "$file"
fi
if ! grep -q "^$file " /proc/swaps; then
    swapon "$file"
    tell "swap is on, $mib MiB in $file"
fi
if ! grep -q "^$file " /etc/fstab; then
    echo "$file none swap sw 0 0" >>/etc/fstab
    tell "/etc/fstab"
fi
