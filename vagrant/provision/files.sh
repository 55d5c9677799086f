# shellcheck shell=bash
# Sourced by the other scripts.

# Set when something was written or installed.
is_changed=

tell() {
    is_changed=1
    echo "changed: $*"
}

# put PATH [MODE]: make the file hold what comes in, unless it does.
put() {
    local path=$1 mode=${2:-644} content
    content=$(cat)
    if [ -e "$path" ] && [ "$(cat "$path")" = "$content" ]; then
        return
    fi
    mkdir -p "$(dirname "$path")"
    printf '%s\n' "$content" >"$path.part"
    chmod "$mode" "$path.part"
    mv "$path.part" "$path"
    tell "$path"
}

# install_packages NAME…: those that are not installed; apt is not asked when all are.
install_packages() {
    local missing=() name
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    tell "installed ${missing[*]}"
}

# serve UNIT: run it now and after each boot; restart it if something was changed. A chroot has no systemd to talk to.
serve() {
    systemctl enable --quiet "$1"
    [ -d /run/systemd/system ] || return 0
    if [ -n "$is_changed" ]; then
        systemctl daemon-reload
        systemctl restart "$1"
    fi
    systemctl start "$1"
}
