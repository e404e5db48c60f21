# Reads from an image's Dockerfile what its last stage holds. Sourced by build.sh and check.sh.
#
# The Dockerfiles all have one form: a stage in which the last command gathers everything with rootfs.sh, then FROM scratch, and that
# folder copied to /. Anything else in the last stage is an error here: it would be in the one image and not in the other.

declare -A dockerfiles=([operator]=operator/Dockerfile [rollout]=rollout-image/Dockerfile [trainer]=trainer-image/Dockerfile.cpu)

# Sets: binaries (array of names), user, entrypoint (JSON).
read_dockerfile() { # IMAGE
  local file=$root/${dockerfiles[$1]} line words last_stage=0 copied=0
  binaries=() user='' entrypoint=''
  while IFS= read -r line; do
    case $line in
      '#'* | '') ;;
      "FROM scratch") last_stage=1 ;;
      *e2e/images/rootfs.sh\ *)
        read -ra words <<< "${line#*rootfs.sh }"
        [ "${words[-1]}" = /rootfs ] || { echo "$file: rootfs.sh fills ${words[-1]}, not /rootfs" >&2; return 1; }
        unset 'words[-1]'
        binaries=("${words[@]#target/release/}")
        ;;
      *)
        [ $last_stage = 0 ] || case $line in
          "COPY --from=build /rootfs /") copied=1 ;;
          "USER "*) user=${line#USER } ;;
          "ENTRYPOINT "*) entrypoint=${line#ENTRYPOINT } ;;
          *) echo "$file: the last stage may not have: $line" >&2; return 1 ;;
        esac
        ;;
    esac
  done < "$file"
  [ $copied = 1 ] && [ ${#binaries[@]} -gt 0 ] && [ -n "$user" ] && [ -n "$entrypoint" ] || { echo "$file: it lacks a part" >&2; return 1; }
}
