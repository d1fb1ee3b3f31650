# The stages of CI, each runnable alone. `just` lists them.

default:
    @just --list

# All that must hold before a commit.
all: fmt clippy test

fmt:
    cargo fmt --all --check

clippy:
    cargo clippy --all-targets --locked -- -D warnings

# The test command of the README.
test:
    cargo test --locked

# The process killed at named points: the package built with crash points in it, its dependencies as they are.
crash:
    HOOKGATE_CRASH_POINTS=1 cargo test --locked --test crash

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# Bans, licences and sources of the dependencies.
deny:
    cargo deny --all-features check bans licenses sources

# Known vulnerabilities; needs the advisory database.
audit:
    cargo deny --all-features check advisories

# The providers' own SDKs against hookgate, both ways; needs node, npm, python3 and the network.
interop:
    cargo build --locked
    tests/interop/run.py

# Random inputs for as long as it is told, `just fuzz 1800`; prints how many each target ran.
fuzz seconds="60":
    HOOKGATE_FUZZ_SECONDS={{seconds}} cargo test --locked --test fuzz --test plugin_fuzz -- --nocapture

# Rebuilds the example plugins and compares.
plugins:
    plugins/build.sh --check

# The author's way in Rust, JavaScript, Python and C, and the examples; needs node, npm, python3 and the network.
languages:
    cargo build --locked
    plugins/languages.sh

# The measurements behind every figure in docs/performance.md.
bench:
    cargo bench --locked --bench gateway

# A long random kill loop, `just soak 1000`; the line it prints says what was counted.
soak kills="1000":
    HOOKGATE_KILLS={{kills}} cargo test --locked --test crash random_kills -- --nocapture
