//! The one wasmtime configuration, for the serving host and for the process that compiles: an artefact of the one
//! loads in the other. How instances are allocated differs, and does not count for that.

use std::time::Duration;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Where instances get their memory from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocator {
    /// Slots reserved at start: the fast one. Takes address space, about 17 GiB for each call of `calls_max`.
    Pooling,
    /// Mapped for each call, for machines that bound address space; two to five times the cost of a call.
    OnDemand,
}

/// What one instance may hold beside memory bytes, the same with either allocator.
pub(super) const MEMORIES_MAX: u32 = 4;
pub(super) const TABLES_MAX: u32 = 64;
pub(super) const CORE_INSTANCES_MAX: u32 = 64;
pub(super) const TABLE_ELEMENTS_MAX: usize = 20_000;
pub(super) const MEMORIES_PER_MODULE_MAX: u32 = 1;
pub(super) const TABLES_PER_MODULE_MAX: u32 = 2;
/// Globals, and what else the engine keeps of an instance.
pub(super) const INSTANCE_BYTES_MAX: usize = 1 << 20;
pub(super) const STACK_BYTES_MAX: usize = 512 << 10;

/// A guest in a loop is looked at once in this time: it yields to others, or has come to its deadline.
pub(super) const TICK: Duration = Duration::from_millis(1);

pub(super) fn engine(allocator: Allocator, calls_max: u32) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .max_wasm_stack(STACK_BYTES_MAX)
        .async_stack_size(1 << 20)
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        // Bit-exact answers on every machine, for replay.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_wide_arithmetic(false)
        .wasm_custom_page_sizes(false)
        // The compiling process has one thread: its limits are then the same on every machine, and a core stays
        // with the traffic.
        .parallel_compilation(false);
    config.allocation_strategy(match allocator {
        Allocator::Pooling => InstanceAllocationStrategy::Pooling(pool(calls_max)),
        Allocator::OnDemand => InstanceAllocationStrategy::OnDemand,
    });
    Engine::new(&config)
}

fn pool(calls_max: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(calls_max)
        .total_stacks(calls_max)
        .total_memories(calls_max * MEMORIES_MAX)
        .total_core_instances(calls_max * 40)
        .total_tables(calls_max * 40)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_module(TABLES_PER_MODULE_MAX)
        .max_memories_per_module(MEMORIES_PER_MODULE_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_memory_size(super::Limits::CAPS.memory_bytes_max)
        .max_component_instance_size(INSTANCE_BYTES_MAX)
        .max_core_instance_size(INSTANCE_BYTES_MAX)
        // A slot is wiped by looking up which pages were written (Linux 6.7 or later) and clearing those in place.
        // Otherwise each call gives its pages back to the kernel, and calls on several threads wait for each other
        // there: two threads then did less than one.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(16 << 20)
        .table_keep_resident(64 << 10);
    pool
}

/// What an artefact must have been compiled for. A change costs a recompilation, no more.
pub(super) fn compatibility(engine: &Engine) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_allocators_take_the_same_artefacts() {
        let hash = |allocator, calls| compatibility(&engine(allocator, calls).unwrap());
        assert_eq!(hash(Allocator::Pooling, 2), hash(Allocator::OnDemand, 2));
        assert_eq!(hash(Allocator::Pooling, 2), hash(Allocator::Pooling, 5));
    }
}
