//! What runs beside dispatch: retention, in bounded batches that never hold up an acceptance, and the watch that raises
//! alerts.

mod alerts;
mod retention;

pub use alerts::{AlertRoute, Watch, Watched, WatchedTenant};
pub use retention::{Settings, run};
