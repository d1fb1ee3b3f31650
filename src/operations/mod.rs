//! What runs beside dispatch: retention, in bounded batches that never hold up an acceptance.

mod retention;

pub use retention::{Settings, run};
