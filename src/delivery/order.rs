//! In which order an endpoint is sent to.

/// The order among an endpoint's deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Each by itself.
    #[default]
    Free,
    /// Those with the same ordering key one after the other, as they were accepted; keys do not wait for each other.
    ByKey(OnDead),
}

/// What a dead letter means for the later deliveries of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDead {
    /// They go on without it.
    #[default]
    Release,
    /// They wait until it is redriven to an end, or resolved.
    Hold,
}

impl Order {
    /// The words of the settings `ordering` and `on_dead`.
    pub const fn as_words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Order::Free => ("none", None),
            Order::ByKey(OnDead::Release) => ("key", Some("release")),
            Order::ByKey(OnDead::Hold) => ("key", Some("hold")),
        }
    }
}
