#!/usr/bin/env bash
# image.sh NAME:TAG FOLDER OUT.tar ENTRYPOINT-JSON [UID:GID]: an image of one layer from a folder's files, in the form `docker save` writes.
# The same files give the same image, byte for byte.
set -euo pipefail
name=$1 folder=$2 out=$3 entrypoint=$4 user=${5:-0:0}
case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
reproducible=(--sort=name --owner=0 --group=0 --numeric-owner --mtime=@0)

tar "${reproducible[@]}" -C "$folder" -cf "$work/layer.tar" .
layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
jq -cn --arg layer "sha256:$layer" --argjson entrypoint "$entrypoint" --arg user "$user" --arg architecture "$architecture" '{
  architecture: $architecture, os: "linux", rootfs: {type: "layers", diff_ids: [$layer]},
  config: {User: $user, Entrypoint: $entrypoint, Env: ["PATH=/usr/local/bin:/bin"], WorkingDir: "/"}}' > "$work/config"
config=$(sha256sum "$work/config" | cut -d' ' -f1).json
mv "$work/config" "$work/$config"
jq -cn --arg name "$name" --arg config "$config" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' > "$work/manifest.json"
tar "${reproducible[@]}" -C "$work" -cf "$out" manifest.json "$config" layer.tar
