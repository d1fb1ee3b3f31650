//! What the figures were measured on.

use crate::limits::disk;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    /// Of the ledgers.
    filesystem: String,
    build: &'static str,
}

impl Machine {
    pub(crate) fn inspect(dir: &Path) -> Result<Machine> {
        let cpu_info = std::fs::read_to_string("/proc/cpuinfo")?;
        let memory_info = std::fs::read_to_string("/proc/meminfo")?;
        let memory_kib = value_of(&memory_info, "MemTotal").trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0);
        Ok(Machine {
            cpu: value_of(&cpu_info, "model name").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: memory_kib / f64::from(1 << 20),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            filesystem: filesystem(dir)?,
            build: if cfg!(debug_assertions) { "debug build, whose figures mean nothing" } else { "release build" },
        })
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{cpu}, {cores} cores for load, gateway and receiver together; {memory:.0} GiB; Linux {kernel}; ledgers on \
             {filesystem}; {build}; durable write = {bytes} KiB + fdatasync",
            cpu = self.cpu,
            cores = self.cores,
            memory = self.memory_gib,
            kernel = self.kernel,
            filesystem = self.filesystem,
            build = self.build,
            bytes = disk::WRITE_BYTES >> 10,
        )
    }
}

/// `name : value`, the first.
fn value_of<'a>(text: &'a str, name: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(':')).filter(|(key, _)| key.trim() == name);
    values.map(|(_, value)| value.trim()).next().unwrap_or("unknown")
}

/// Kind and device of what is mounted closest above `dir`.
fn filesystem(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        dir.starts_with(at).then(|| (at.len(), format!("{kind} ({device})")))
    });
    Ok(above.max_by_key(|(depth, _)| *depth).map_or_else(|| "unknown".to_owned(), |(_, name)| name))
}
