//! The disk's limit: one small write made durable, again and again, in a file that has its size already.

use crate::latency::{Latencies, Spread};
use anyhow::{Context as _, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// About what a commit of one event writes.
pub(crate) const WRITE_BYTES: usize = 8 << 10;
const FILE_BYTES: u64 = 16 << 20;

/// `fdatasync` after each write; with `pause`, the machine comes to rest in between.
pub(crate) fn measure(dir: &Path, span: Duration, pause: Option<Duration>) -> Result<Spread> {
    let path = dir.join("disk.tmp");
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
    let file = file.with_context(|| format!("create {}", path.display()))?;
    let block = [7; WRITE_BYTES];
    let blocks = FILE_BYTES / WRITE_BYTES as u64;
    for block_at in 0..blocks {
        file.write_all_at(&block, block_at * WRITE_BYTES as u64)?;
    }
    file.sync_all()?;
    let mut latencies = Latencies::new()?;
    let start = Instant::now();
    for block_at in (0..blocks).cycle() {
        if start.elapsed() >= span {
            break;
        }
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        let from = Instant::now();
        file.write_all_at(&block, block_at * WRITE_BYTES as u64)?;
        file.sync_data()?;
        latencies.record_span(from.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(latencies.spread())
}
