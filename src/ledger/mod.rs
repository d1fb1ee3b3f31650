//! What is durable: events, deliveries, attempts, endpoint states. One verb is one fact in one transaction.
//!
//! The traits are small and by topic; no handle, SQL or backend name gets out. The ledger stores decisions and takes
//! none. `now` is handed in. Authoritative is what has been committed; [`Wakes`] is only a hint, polling is the truth.
//!
//! A lease can only be made against a [`Slot`], and a slot only by [`Slots`], so that never more is in flight than the
//! caps allow. Work that is accepted with a slot at hand is born leased: its first attempt is recorded in the
//! transaction that accepts it, and after the commit it goes to the dispatcher from memory.

mod adoptions;
mod again;
mod alerts;
mod answers;
mod dead_letters;
mod error;
mod operations;
mod ordering;
mod pace;
mod past;
mod plugins;
mod pull;
mod queue;
mod records;
mod rejections;
mod slots;
pub mod sqlite;
mod stats;
mod sweeps;
mod trials;
mod wakes;

pub use adoptions::{Adopted, AdoptedSecret, Adoptions};
pub use again::{AGAIN_MAX, Again, Origin, Replay, ReplayRehearsed, Resend, Resent};
pub use alerts::{
    ALERTS_KEPT_MAX, AlertNotes, AlertQuestion, AlertRow, AlertShown, AlertTold, Alerts, DEADLINES_PAGE, DeadlinePage,
    DeadlinePlace, DeadlineQuestion, ENDED_ROWS_MAX, KnownFacts, STATUS_CHANGES_MAX, ToTell, WhichAlerts,
};
pub use answers::{ANSWER_BYTES_MAX, ANSWERS_KEPT_FOR, Answers, KeptAnswer, RequestId};
pub use dead_letters::{
    Advanced, BULK_STEP_MAX, BegunOperation, DeadDestination, DeadFilter, DeadLetters, NewOperation,
    OPERATIONS_KEPT_MAX, OPERATIONS_OPEN_MAX, OPERATIONS_RUNNING_MAX, OperationChange, OperationChanged, OperationRow,
    OperationState, PurgePlace, Purged, Results, Skipped, Wave, WaveResult, Work,
};
pub use error::LedgerError;
pub use operations::{
    Cancelled, EndpointChange, Operations, Pruned, Redrive, Redriven, ResolveAs, Resolved, Retention,
};
pub use ordering::OrderingKey;
pub use past::{Past, PastAttempt, PastDetail, PastEvent, PastFilter, PastPage, PastPlace, PastRoom};
pub use plugins::{
    ACTIVATIONS_MAX, Activate, Activated, ActivationRow, Change, Disable, FaultRow, Findings, History, Judgement,
    PLUGIN_PAUSES, Plugins, REJECTED_MAX, Rejection, Upload, UploadRow, Uploaded, VERSIONS_MAX, VersionRow,
    VersionState,
};
pub use pull::{Consume, Consumed, Ended, Extension, Handed, Held, Lapsed, Pull, Receipt, Strayed};
pub use queue::{
    Accept, Accepted, AttemptRecord, Claimed, Claims, Declaration, DeclaredEndpoint, DeclaredTenant, Directory,
    EndpointEntry, EventContent, Lease, LogRecord, NewDelivery, Queue, RequestRecord, ResponseRecord, Settled,
    Settlement, TenantEntry,
};
pub use records::{
    AttemptRow, BodyRow, Cursor, DeadBy, DeadGroup, DeliveryDetail, DeliveryFilter, DeliveryRow, EndpointHealth,
    EndpointState, EventFilter, EventRow, Gauges, Page, PageRequest, Records, RevisionRow,
};
pub use rejections::{
    BodyFacts, REJECTION_DETAIL_BYTES_MAX, REJECTIONS_MAX, REJECTIONS_PER_SOURCE_MAX, Rejected, RejectionFilter,
    RejectionRow, Rejections,
};
pub use slots::{EndpointCaps, Slot, Slots, Taken};
pub use stats::{
    BadWindow, CLOSINGS_MAX, Closed, Count, EndpointStats, ReasonCount, SourceStats, Stats, StatsQuery, StatsWindow,
    Tally, TenantStats,
};
pub use sweeps::{ResolveMany, Sweeps, Swept};
pub use trials::{
    Begun, Compared, Course, DIFFERENCES_MAX, Difference, EndRow, EndTrial, Ending, Halves, NewTrial, Noted, PutBack,
    TRIALS_MAX, Told, TrialRow, Trials,
};
pub use wakes::Wakes;

/// All of it, as `app` hands it round.
pub trait Ledger:
    Queue
    + Pull
    + Records
    + Operations
    + Again
    + Sweeps
    + DeadLetters
    + Rejections
    + Adoptions
    + Answers
    + Plugins
    + Past
    + Trials
    + Stats
    + Alerts
{
}

impl<T> Ledger for T where
    T: Queue
        + Pull
        + Records
        + Again
        + Sweeps
        + Operations
        + DeadLetters
        + Rejections
        + Adoptions
        + Answers
        + Plugins
        + Past
        + Trials
        + Stats
        + Alerts
{
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);
    )*};
}

keys! {
    /// A tenant's number in this ledger.
    TenantKey;
    /// A source's number in this ledger.
    SourceKey;
    /// An endpoint's number in this ledger.
    EndpointKey;
}
