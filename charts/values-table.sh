#!/usr/bin/env bash
# Writes the table of values in docs/src/install.md from the comments `# --` of thresh/values.yaml. With --check it only compares.
set -euo pipefail
cd "$(dirname "$0")"
page=../docs/src/install.md

table() {
    echo '| value | default | what it is |'
    echo '|---|---|---|'
    awk '
        /^ *# -- / { sub(/^ *# -- /, ""); text = $0; next }
        /^ *[A-Za-z]+:/ {
            match($0, /^ */); depth = RLENGTH / 2
            key = $1; sub(/:$/, "", key)
            value = $0; sub(/^ *[A-Za-z]+: */, "", value)
            path[depth] = key
            if (text == "") next
            full = path[0]
            for (i = 1; i <= depth; i++) full = full "." path[i]
            # What spans lines is not shown.
            if (value == "") value = "see `values.yaml`"; else value = "`" value "`"
            gsub(/\|/, "\\|", text)
            printf "| `%s` | %s | %s |\n", full, value, text
            text = ""
        }
    ' thresh/values.yaml
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
    sed '/<!-- values: /q' "$page"
    table
    sed -n '/<!-- end of values -->/,$p' "$page"
} >"$new"
if [ "${1:-}" = --check ]; then
    diff -u "$page" "$new" || { echo "docs/src/install.md is not what thresh/values.yaml says: run \`make charts\`" >&2; exit 1; }
else
    cp "$new" "$page"
fi
