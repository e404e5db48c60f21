#!/usr/bin/env bash
# rootfs.sh BINARY... OUT: fills the folder OUT with all that an image of ours holds, and nothing else: the binaries, exactly the shared
# libraries that they name, and the few files that libc reads. The Dockerfiles and build.sh both call it.
set -euo pipefail
binaries=("${@:1:$#-1}") out=${*: -1}
[ ${#binaries[@]} -gt 0 ] && [ ! -e "$out" ] || { echo "rootfs: give binaries, and a folder that is not there yet" >&2; exit 2; }

mkdir -p "$out"/{etc,tmp,usr/local/bin}
chmod 1777 "$out/tmp"
# Without their symbols, a quarter of their size; a panic says its file and line all the same.
install -s -m 755 "${binaries[@]}" "$out/usr/local/bin/"

linked=$(ldd "${binaries[@]}")
! grep "not found" <<< "$linked" >&2 || exit 1
# "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)", and the loader by its own path.
for library in $(sed -nE 's/^\s+(\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/\2/p' <<< "$linked" | sort -u); do
  install -D -m 755 "$library" "$out$library"
done

echo "root:x:0:0:root:/:/sbin/nologin
nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin" > "$out/etc/passwd"
echo "root:x:0:
nonroot:x:65532:" > "$out/etc/group"
# Names are looked up in the pod's /etc/hosts, then in the cluster's DNS; both are inside libc itself.
echo "passwd: files
group: files
hosts: files dns" > "$out/etc/nsswitch.conf"
chmod 644 "$out"/etc/*
