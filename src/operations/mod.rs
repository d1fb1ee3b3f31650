//! What runs beside dispatch, in bounded batches that never hold up an acceptance: retention, the watch that raises
//! alerts, and redrives in bulk.

mod alerts;
mod bulk;
mod plan;
mod retention;

pub use alerts::{AlertRoute, Watch, Watched, WatchedTenant};
pub use bulk::run as run_bulk;
pub use retention::{Settings, run};
