#!/usr/bin/env bash
# The author's way, as docs/plugins.md tells it, in every language: new, build, check, test, run, bench; and the examples
# of this folder, built and held against their fixtures.
#
#   plugins/languages.sh [HOOKGATE]        the binary; default: target/debug/hookgate
#
# Installs what it needs: Node and Python's venv by apt where they are missing, the languages' own tools by npm and pip
# into a folder that goes away.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hookgate=$(realpath "${1:-$here/../target/debug/hookgate}")
[ -x "$hookgate" ] || { echo "no $hookgate: cargo build" >&2; exit 1; }

if ! command -v node >/dev/null || ! command -v npm >/dev/null || ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends nodejs npm python3 python3-venv
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
passed=0

say() { printf -- '-- %s (%ss)\n' "$*" "$SECONDS"; }
ok() { passed=$((passed + 1)); }

# What `plugin build` names as missing is what is done here.
tools() { # LANG, in the project's folder
  case $1 in
    rust) eval "$("$here/toolchain.sh")"; export CARGO_TARGET_DIR=$here/target/components ;;
    js) npm install --silent --no-audit --no-fund ;;
    python) python3 -m venv .venv && .venv/bin/pip install --quiet -r requirements.txt ;;
    c) python3 -m venv .venv && .venv/bin/pip install --quiet ziglang==0.17.1 ;;
  esac
}

for lang in rust js python c; do
  say "a new project: $lang"
  "$hookgate" plugin new --quiet --lang "$lang" "new-$lang"
  (
    cd "new-$lang"
    if [ "$lang" != rust ]; then
      ! "$hookgate" plugin build 2>missing || { echo "built without its tools?" >&2; exit 1; }
      grep -q "missing on this machine" missing
    fi
    tools "$lang"
    "$hookgate" plugin build
    "$hookgate" plugin check
    "$hookgate" plugin test
    # Each command compiles anew, which for Python's interpreter takes ten seconds.
    if [ "$lang" != python ]; then
      "$hookgate" plugin run fixtures/classify.json
      "$hookgate" plugin bench --calls 100
    fi
  )
  ok
done

# The tools are there by now: the examples take them from the new projects.
for example in sms-rules:rust crm-rest:js books-form:python stock-400:c; do
  name=${example%:*} lang=${example#*:}
  say "an example: $name"
  if [ "$lang" = rust ]; then
    "$hookgate" plugin test "$here/$name" --plugin "$here/$name.wasm"
  else
    cp -rL "$here/$name" "$name"
    for tool in node_modules .venv; do
      [ ! -e "new-$lang/$tool" ] || ln -s "$work/new-$lang/$tool" "$name/$tool"
    done
    "$hookgate" plugin build "$name"
    "$hookgate" plugin test "$name"
  fi
  ok
done

say "done"
echo "$passed passed, 0 failed"
