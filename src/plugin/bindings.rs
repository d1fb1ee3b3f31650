//! What `wit/hookgate.wit` generates, untouched. Only `convert` and the files that make a call look inside.

#![allow(unreachable_pub, unused_qualifications, clippy::redundant_closure_for_method_calls)]

wasmtime::component::bindgen!({
    path: "wit",
    world: "plugin",
    exports: { default: async },
    ownership: Borrowing { duplicate_if_necessary: true },
});
