#!/bin/bash
# The first process of a node: it sees only the node's cgroups, processes and mounts, starts containerd and the kubelet,
# and takes the whole node with it when it ends. Started by node.py, which says in the environment where everything is:
# NODE_NAME, NODE_ADDRESSES (its own first), NODE_FOLDER, NODE_HIERARCHIES (one a line: options, then where it is
# mounted), NODE_MEMORY_KIB, NODE_IMAGES, NODE_SNAPSHOTTER,
# NODE_KUBERNETES.
set -eu
umask 022 # as init gives it to containerd, whose umask the root of a container has

hostname "$NODE_NAME"
mount --make-rshared /
mount -t proc proc /proc
ip link set lo up
for address in $NODE_ADDRESSES; do ip address add "$address/32" dev lo; done
mount -t tmpfs -o mode=755,size=256m tmpfs /run
mount --bind "$NODE_FOLDER/log" /var/log
mount -t tmpfs -o mode=755,size=1m tmpfs /var/lib
mkdir /var/lib/kubelet
mount --bind "$NODE_FOLDER/kubelet" /var/lib/kubelet

# Mounted again, each hierarchy has the node's own cgroup as its root.
umount -R /sys/fs/cgroup
mount -t tmpfs -o mode=755,size=1m tmpfs /sys/fs/cgroup
while read -r options path; do
    mkdir -p "$path"
    mount -t cgroup -o "$options" cgroup "$path"
done <<<"$NODE_HIERARCHIES"

# The memory that the kubelet says the node has.
sed "s/^MemTotal:.*/MemTotal: $NODE_MEMORY_KIB kB/" /proc/meminfo >/run/meminfo
mount --bind /run/meminfo /proc/meminfo
# The kubelet writes to these, which are the whole machine's: it gets files that hold what it wants.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    [ -e "/proc/sys/$name" ] || continue
    file=/run/sysctl-${name//\//-}
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done

socket=/run/containerd/containerd.sock
containerd --config "$NODE_FOLDER/containerd.toml" >"$NODE_FOLDER/containerd.log" 2>&1 &
for _ in $(seq 400); do
    ctr -a $socket version >/dev/null 2>&1 && break
    sleep 0.05
done
for image in $NODE_IMAGES; do
    ctr -a $socket -n k8s.io images import --snapshotter "$NODE_SNAPSHOTTER" "$image"
done
"$NODE_KUBERNETES" kubelet --config="$NODE_FOLDER/kubelet.json" --kubeconfig="$NODE_FOLDER/kubelet.kubeconfig" \
    --hostname-override="$NODE_NAME" --node-ip="${NODE_ADDRESSES%% *}" --cert-dir="$NODE_FOLDER/certificates" \
    >"$NODE_FOLDER/kubelet.log" 2>&1 &
wait -n
echo "containerd or the kubelet ended"
exit 1
