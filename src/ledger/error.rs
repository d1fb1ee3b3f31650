//! What can go wrong with the ledger, by who must act.

/// A verb that did not happen: nothing of it is durable, unless the variant says that this is not known.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// Transient: too much is queued, the disk is full, the write-ahead log is over its bound. Try again later.
    #[error("the ledger cannot take this now: {0}")]
    Unavailable(String),
    /// A flush failed or a structure is damaged: nothing more is accepted or sent, and the process must end.
    #[error("the ledger has stopped for safety: {0}")]
    Stopped(String),
    /// This row cannot be read (it does not authenticate); the others can.
    #[error("the row is quarantined: {0}")]
    Quarantined(String),
    /// A list's cursor that this ledger did not give out.
    #[error("the cursor is not one of this list's; start again without it")]
    BadCursor,
    /// A read took longer than it may.
    #[error("the query took longer than {seconds} s; narrow it, for instance by `since`")]
    TooSlow { seconds: u64 },
    /// The ledger cannot be opened as it is.
    #[error("{problem}; {remedy}")]
    Open { problem: String, remedy: String },
}
