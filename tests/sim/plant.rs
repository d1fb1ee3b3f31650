//! Bugs that are put in on purpose, one at a time, below the oracle: each breaks one rule, and must be found by it.

/// One bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// An event is acknowledged, and nothing was written.
    AckWithoutCommit,
    /// The same key is another event.
    DedupForgotten,
    /// One delivery of a fan-out is not made.
    FanOutDropped,
    /// What was delivered is tried again.
    DeliveredAgain,
    /// The client repeats by itself what failed.
    ClientResends,
    /// A released attempt is counted.
    ReleasedCounted,
    /// An interrupted attempt is not counted.
    InterruptedUncounted,
    /// The numbers of attempts have a gap.
    NumberGap,
    BodyChanged,
    /// `webhook-id` is another one from the second attempt on.
    IdChanged,
    /// `webhook-timestamp` is not of this attempt.
    StaleStamp,
    /// A claim gives one delivery twice.
    ClaimedTwice,
    /// Who lost the lease is told that the outcome is stored.
    LostLeaseStored,
    /// Leases are taken over while they are held.
    LeaseStolen,
    /// A repeated redrive makes another generation.
    RedriveTwice,
    GaugeDrifts,
    DeadWithoutReason,
    /// A retry is due at once.
    DueIgnored,
    /// `Retry-After` pauses nothing.
    PauseForgotten,
    /// Disabling an endpoint changes nothing.
    DisableIgnored,
    /// More is in flight than the endpoint may have.
    CapIgnored,
    /// A tenant reads the delivery of another.
    ForeignRead,
    /// What was never committed is sent.
    SentUncommitted,
    /// A retry is put off for longer than anybody decided.
    Forgotten,
}

impl Plant {
    /// Each with the invariant that must name it.
    pub const ALL: [(Plant, &'static str); 24] = [
        (Plant::AckWithoutCommit, "I1"),
        (Plant::DedupForgotten, "I3"),
        (Plant::FanOutDropped, "I4"),
        (Plant::DeliveredAgain, "I6"),
        (Plant::ClientResends, "I7"),
        (Plant::ReleasedCounted, "I8"),
        (Plant::InterruptedUncounted, "I8"),
        (Plant::NumberGap, "I8"),
        (Plant::BodyChanged, "I9"),
        (Plant::IdChanged, "I10"),
        (Plant::StaleStamp, "I11"),
        (Plant::ClaimedTwice, "I12"),
        (Plant::LostLeaseStored, "I12"),
        (Plant::LeaseStolen, "I12"),
        (Plant::RedriveTwice, "I13"),
        (Plant::GaugeDrifts, "I14"),
        (Plant::DeadWithoutReason, "I15"),
        (Plant::DueIgnored, "I16"),
        (Plant::PauseForgotten, "I16"),
        (Plant::DisableIgnored, "I17"),
        (Plant::CapIgnored, "I19"),
        (Plant::ForeignRead, "I21"),
        (Plant::SentUncommitted, "I23"),
        (Plant::Forgotten, "liveness"),
    ];
}
