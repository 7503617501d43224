# enter.sh SYSTEM CHECKOUT COMMAND...: run a command of the system, in the checkout. For `unshare`: it needs namespaces of
# its own for users, mounts and processes. Linux has a list of emulators for each namespace of users since 6.7.
set -e
system=$1 checkout=$2 root=$1/root
shift 2
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/mnt"
mount -t binfmt_misc none "$root/mnt"
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":aarch64:M::$magic:$mask:$system/qemu:FPO" > "$root/mnt/register"
mount -t proc proc "$root/proc"
mount --bind "$system/cpuinfo" "$root/proc/cpuinfo"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$checkout"
mount --bind "$checkout" "$root$checkout"
# QEMU takes memory for each page that a program maps, reserved or not: a test that maps terabytes ends, not the machine.
ulimit -d 8388608
# Not `exec`: the first process of a namespace does not die of a signal.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
chroot "$root" sh -c 'cd "$0" && exec "$@"' "$checkout" "$@"
exit $?
