#!/usr/bin/env bash
# kernel.sh OPTION…: boot with these options of the kernel, and no others that this script set before.
# They are in force after the next boot.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

# The machine's own options stay.
put /etc/default/grub.d/50-koordebpf-options.cfg <<EOF
GRUB_CMDLINE_LINUX="\$GRUB_CMDLINE_LINUX $*"
EOF
[ -n "$is_changed" ] || exit 0
if [ -d /boot/grub ]; then
    update-grub 2>/dev/null
else
    echo "no GRUB here: whatever boots this machine has to give the kernel: $*"
fi
