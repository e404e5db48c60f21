#!/usr/bin/env bash
# build.sh [IMAGE...]: makes target/images/{operator,rollout,trainer}.tar from the built binaries, and loads them if our cluster is up.
# No image tool is needed. What goes in, the user and the entry point are read from the Dockerfiles, which say it for `docker build`.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$here/../..
from=${THRESH_BINARIES:-${CARGO_TARGET_DIR:-$root/target}/release}
out=${THRESH_IMAGES:-${CARGO_TARGET_DIR:-$root/target}/images}
limit_mb=60
. "$here/dockerfiles.sh"

[ $# -gt 0 ] || set -- operator rollout trainer
mkdir -p "$out"
tars=()
for image in "$@"; do
  read_dockerfile "$image"
  folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
  "$here/rootfs.sh" "${binaries[@]/#/$from/}" "$folder/rootfs"
  "$here/../cluster/image.sh" "thresh.local/$image:e2e" "$folder/rootfs" "$out/$image.tar" "$entrypoint" "$user"
  rm -rf "$folder"
  size=$(stat -c %s "$out/$image.tar")
  printf 'images: thresh.local/%s:e2e, %d MB, %s\n' "$image" $((size / 1000000)) "${binaries[*]}"
  [ "$size" -le $((limit_mb * 1000000)) ] || { echo "images: $image is larger than $limit_mb MB" >&2; exit 1; }
  tars+=("$out/$image.tar")
done
if [ -e /run/thresh-e2e/up ]; then
  "$here/../cluster/cluster.sh" load "${tars[@]}"
  echo "images: loaded"
fi
