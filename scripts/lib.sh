# Sourced by every script: goes to the repository root, knows the pinned versions, says what it does.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/versions.env
. scripts/versions.env

tools=$root/.tools
target_dir=${CARGO_TARGET_DIR:-$root/target}

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The filter's features that Envoy's V8 has. Named one by one: stripping the module removes the section that lists them.
wasm_features=(--enable-simd --enable-bulk-memory --enable-sign-ext --enable-nontrapping-float-to-int
    --enable-mutable-globals --enable-multivalue --enable-reference-types)
