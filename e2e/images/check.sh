#!/usr/bin/env bash
# check.sh: fails unless the images in target/images hold what their Dockerfiles would put into them, and no file more.
# It runs no Docker: reading a Dockerfile already fails on a last stage that is more than rootfs.sh's folder (dockerfiles.sh), so what is
# left to compare is the image with that folder: each path, mode and content, the user and the entry point.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$here/../..
from=${THRESH_BINARIES:-${CARGO_TARGET_DIR:-$root/target}/release}
images=${THRESH_IMAGES:-${CARGO_TARGET_DIR:-$root/target}/images}
. "$here/dockerfiles.sh"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

listing() { (cd "$1" && find . \( -type f -printf '%M %p ' -exec sh -c 'sha256sum < "$1"' _ {} \; \) -o -printf '%M %p %l\n' | sort -k2); }

failed=0
for image in operator rollout trainer; do
  read_dockerfile "$image"
  rm -rf "${work:?}"/*
  "$here/rootfs.sh" "${binaries[@]/#/$from/}" "$work/expected"
  mkdir "$work/image" "$work/actual"
  tar -C "$work/image" -xf "$images/$image.tar"
  tar -C "$work/actual" -xpf "$work/image/layer.tar"
  listing "$work/expected" > "$work/expected.txt"
  listing "$work/actual" > "$work/actual.txt"
  diff -u "$work/expected.txt" "$work/actual.txt" || failed=1
  config=$work/image/$(jq -r '.[0].Config' "$work/image/manifest.json")
  [ "$(jq -c .config.Entrypoint "$config")" = "$(jq -c . <<< "$entrypoint")" ] && [ "$(jq -r .config.User "$config")" = "$user" ] \
    || { echo "$image: entry point or user differ from the Dockerfile's" >&2; failed=1; }
  echo "images: $image: $(grep -c '^-' "$work/actual.txt") files"
done
exit $failed
