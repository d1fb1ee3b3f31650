#!/usr/bin/env bash
# Prints, as `export` lines, the environment in which cargo builds Rust plugins into components:
#
#   eval "$(plugins/toolchain.sh)" && cargo build --release
#
# Where rustup has its own wasm32 target (`rustup target add wasm32-unknown-unknown`), that is used. Where it has not,
# and cannot download it, the compiler with its library source comes from Debian (rustc-web, rust-web-src, one version
# of both, installed by apt when missing), and std is built from that source. Either way the linker is the one that
# rustup's toolchain carries: it leaves a component, so that no further tool is needed, and nothing of WASI gets in.
#
# Paths of this machine are kept out of the output: two machines with the same compiler build the same bytes.
set -euo pipefail

say() { echo "$*" >&2; }
export_line() { printf 'export %s=%q\n' "$1" "$2"; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sysroot=$(rustc --print sysroot)
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$sysroot/lib/rustlib/$host/bin
component_linker=$tools/wasm-component-ld
wasm_linker=$tools/gcc-ld/wasm-ld
for tool in "$component_linker" "$wasm_linker"; do
  [ -x "$tool" ] || { say "missing: $tool. It comes with rustup's rustc."; exit 1; }
done

cargo_home=${CARGO_HOME:-$HOME/.cargo}
flags="-C link-arg=--wasm-ld-path=$wasm_linker --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$here=/plugins"

if [ -d "$sysroot/lib/rustlib/wasm32-unknown-unknown/lib" ]; then
  flags+=" --remap-path-prefix=$sysroot=/rust"
else
  if ! dpkg -s rustc-web rust-web-src >/dev/null 2>&1; then
    say "installing rustc-web and rust-web-src by apt (140 MB)"
    apt-get update -q >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends rustc-web rust-web-src >&2
  fi
  compiler=/usr/bin/rustc
  source_root=$("$compiler" --print sysroot)
  [ -e "$source_root/lib/rustlib/src/rust/library/Cargo.lock" ] || { say "no library source beside $compiler"; exit 1; }
  flags+=" --remap-path-prefix=$(readlink -f "$source_root/lib/rustlib/src/rust")=/rust"
  flags+=" --remap-path-prefix=$source_root/lib/rustlib/src/rust=/rust"
  export_line RUSTC "$compiler"
  export_line RUSTC_BOOTSTRAP 1
  export_line CARGO_UNSTABLE_BUILD_STD std,panic_abort
fi
export_line CARGO_BUILD_TARGET wasm32-unknown-unknown
export_line CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER "$component_linker"
export_line CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS "$flags"
echo "unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER RUSTFLAGS CARGO_ENCODED_RUSTFLAGS"
