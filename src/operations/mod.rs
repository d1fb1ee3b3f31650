//! What runs beside dispatch, in bounded batches that never hold up an acceptance: retention, and redrives in bulk.

mod bulk;
mod plan;
mod retention;

pub use bulk::run as run_bulk;
pub use retention::{Settings, run};
