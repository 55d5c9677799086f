#!/usr/bin/env bash
# What the other scripts need of Debian. koordebpf's own needs are .ci/setup's affair.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

install_packages ca-certificates curl jq kmod util-linux zstd
