#!/usr/bin/env bash
# Install Debian 11's kernel beside the others, and boot it from now on.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

# Bullseye has left the main archive's mirrors; its security updates have not.
archive=${DEBIAN_SECURITY:-http://deb.debian.org/debian-security}
put /etc/apt/sources.list.d/bullseye-security.list <<EOF
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive bullseye-security main
EOF
# Nothing else comes from there.
put /etc/apt/preferences.d/bullseye-security <<'EOF'
Package: *
Pin: release n=bullseye-security
Pin-Priority: 1
EOF

architecture=$(dpkg --print-architecture)
# The newest of those that are installed, else of those that can be.
installed() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'linux-image-5.10.*' 2>/dev/null | sed -n 's/^installed //p'; }
newest() { grep -xE "linux-image-5\.10\.0-[0-9]+-$architecture" | sort -V | tail -n 1; }
image=$(installed | newest || true)
if [ -z "$image" ]; then
    apt-get update -qq
    image=$(apt-cache pkgnames linux-image-5.10 | newest)
    install_packages "$image"
fi

release=${image#linux-image-}
put /etc/default/grub.d/50-koordebpf-kernel.cfg <<EOF
GRUB_DEFAULT="Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux $release"
EOF
if [ -n "$is_changed" ] && [ -d /boot/grub ]; then update-grub 2>/dev/null; fi
