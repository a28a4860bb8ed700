# Sourced by every script, which has said in `usage` how it is called: goes to the repository root, knows the pinned versions, says
# what it does.
# shellcheck shell=bash
set -euo pipefail

print_usage() {
    printf '%s\n' "$usage"
    exit 0
}
# Before anything is made. Further on in the line a script looks for itself: it may pass the question on.
case ${1:-} in -h | --help) print_usage ;; esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/versions.env
. scripts/versions.env

# What several checkouts share by a link is one place, whoever looks.
mkdir -p "$root/.tools"
tools=$(cd -P "$root/.tools" && pwd)
target_dir=${CARGO_TARGET_DIR:-$root/target}
# With a target of the user's cargo would put what it builds elsewhere.
unset CARGO_BUILD_TARGET

# The target of programs that need nothing of the machine they run on.
musl_target() { printf '%s-unknown-linux-musl\n' "$(uname -m)"; }

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
# For what was asked and cannot be: 2, as our programs have it.
refuse() {
    printf 'error: %s\n%s\n' "$*" "$usage" >&2
    exit 2
}

# The filter's features that Envoy's V8 has. Named one by one: stripping the module removes the section that lists them.
wasm_features=(--enable-simd --enable-bulk-memory --enable-sign-ext --enable-nontrapping-float-to-int
    --enable-mutable-globals --enable-multivalue --enable-reference-types)

# Same sources, same bytes, wherever they stand: no path of this machine goes into what is built. Cargo joins this with what
# .cargo/config.toml says. $1 the target.
remapped() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} flags
    flags="'--remap-path-prefix=$cargo_home=/cargo', '--remap-path-prefix=$root=/weighbridge'"
    printf '%s\n' --config "target.$1.rustflags=[$flags]"
}
