#!/usr/bin/env bash
# Builds the plugins of this folder into components.
#
#   plugins/build.sh            writes plugins/NAME.wasm, which are committed
#   plugins/build.sh --check    builds them again and holds them against the committed ones
#   plugins/build.sh --test     runs the guests' own tests, natively
#
# A check passes when the bytes are the same or, built by another compiler, when the gateway's tests of the plugin
# pass with the fresh one, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PLUGINS="sms-rules"
SIZE_MAX=153600

build() {
  eval "$(./toolchain.sh)"
  # A folder of its own: another compiler may be at work than for native builds.
  export CARGO_TARGET_DIR=$PWD/target/components
  for plugin in $PLUGINS; do
    cargo build --locked --release -p "$plugin"
    built=$CARGO_TARGET_DIR/wasm32-unknown-unknown/release/${plugin//-/_}.wasm
    head=$(od -An -tx1 -N8 "$built" | tr -d ' \n')
    [ "$head" = 0061736d0d000100 ] || { echo "$built is not a component" >&2; exit 1; }
    size=$(stat -c %s "$built")
    [ "$size" -le "$SIZE_MAX" ] || { echo "$plugin has $size bytes, more than $SIZE_MAX" >&2; exit 1; }
  done
}

fresh() { echo "$PWD/target/components/wasm32-unknown-unknown/release/${1//-/_}.wasm"; }

case ${1:-} in
  "")
    (build)
    for plugin in $PLUGINS; do
      cp "$(fresh "$plugin")" "$plugin.wasm"
      echo "plugins/$plugin.wasm: $(stat -c %s "$plugin.wasm") bytes"
    done
    ;;
  --check)
    (build)
    for plugin in $PLUGINS; do
      if cmp -s "$(fresh "$plugin")" "$plugin.wasm"; then
        echo "plugins/$plugin.wasm: the same bytes"
      else
        echo "plugins/$plugin.wasm: other bytes; testing the fresh one"
        variable=HOOKGATE_TEST_$(echo "$plugin" | tr 'a-z-' 'A-Z_')
        (cd .. && env "$variable=$(fresh "$plugin")" cargo test --test plugins "${plugin//-/_}")
      fi
    done
    ;;
  --test) cargo test --locked --target-dir target/native ;;
  *) echo "usage: $0 [--check | --test]" >&2; exit 2 ;;
esac
