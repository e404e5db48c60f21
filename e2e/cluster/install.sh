#!/usr/bin/env bash
# install.sh: the Debian packages that the cluster stands on, those that are missing. It installs nothing else.
set -euo pipefail
packages=(containerd runc containernetworking-plugins iptables conntrack ethtool socat jq fuse3
  iproute2 procps openssl curl ca-certificates)
[ "${JUICEFS:-1}" = 0 ] || python3 -m pip --version > /dev/null 2>&1 || packages+=(python3-pip)

command -v dpkg-query > /dev/null || { echo "install: this is no Debian. Needed: ${packages[*]}" >&2; exit 1; }
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "install: ${missing[*]}"
[ "$(id -u)" = 0 ] || { echo "install: apt-get needs root" >&2; exit 1; }

# Packages start their services; the cluster runs its own containerd and needs none of them. An existing policy is left alone.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' > $policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --quiet --no-install-recommends "${missing[@]}" || {
  apt-get update --quiet
  apt-get install --yes --quiet --no-install-recommends "${missing[@]}"
}
