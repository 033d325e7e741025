#!/bin/sh
# The target of a test. It runs in new mount, network, UTS and PID namespaces, and sets up its own root, network, host name
# and user. It prints "ready" as that user, and ends with its standard input. After "ready" it must not exec again, because
# a process has no environment during exec.
set -eu

mount --make-rprivate /
hostname target-1.shop.internal
ip link set lo up
ip address add 10.9.0.1/32 dev lo
ip address add fd00:9::1/128 dev lo nodad

root=/mnt
mount -t tmpfs target "$root"
cd "$root"
mkdir -p usr etc proc tmp srv/data srv/locked run dev
chmod 1777 tmp
mount --rbind /usr usr
for name in bin lib lib64 sbin; do
    [ -L "/$name" ] && cp -P "/$name" "$name"
done
mount -t proc proc proc
mknod -m 666 dev/null c 1 3

printf '127.0.0.1 localhost\n10.0.0.99 db.internal db\n' > etc/hosts
printf 'nameserver 127.0.0.1\nsearch shop.internal other.internal\noptions ndots:2\n' > etc/resolv.conf
printf 'only at the target\n' > etc/greeting
printf 'secret' > etc/shadow
chmod 600 etc/shadow
printf 'for the group' > etc/group-only
chown 0:2000 etc/group-only
chmod 640 etc/group-only
# Absolute links and links with ".." stay inside this root.
ln -s /etc/greeting srv/absolute
ln -s ../../../../etc/greeting srv/upward
ln -s nowhere srv/dangling
ln -s loop srv/loop
chown -R 1234:1235 srv/data
chmod 700 srv/locked

large=$(head -c 120000 /dev/zero | tr '\0' x)
exec chroot "$root" setpriv --reuid 1234 --regid 1235 --groups 1235,2000 \
    env -i GREETING=hello EMPTY= 'LINES=one
two' "BYTES=$(printf '\377\376')" LARGE_1="$large" LARGE_2="$large" LARGE_3="$large" LARGE_4="$large" LARGE_5="$large" \
    LARGE_6="$large" LARGE_7="$large" LARGE_8="$large" LARGE_9="$large" PATH=/usr/bin \
    sh -c 'cd /srv/data; echo ready; cat; exit'
