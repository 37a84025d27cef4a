//! The scripts that run on the server, each of them atomically.

/// A script on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Changes the ledger's own key.
    Amend,
    /// Makes a shard part of the ledger.
    Adopt,
    /// Compare-and-swap.
    Swap,
    /// Compare-and-delete.
    Delete,
    /// Requests a notification of a record's next change.
    Watch,
    /// Adds to a replay tally.
    Tally,
    /// A page of a shard's listing.
    Page,
    /// The number of records in each state.
    Counts,
    /// The ids of a shard with a given key or prefix.
    Lookup,
    /// Sets or lifts a barrier.
    Stop,
    /// The occurrences of an action.
    Occurrences,
}

impl Script {
    /// All scripts, in the order in which a connection loads them.
    pub(super) const ALL: [Self; 11] = [
        Self::Amend,
        Self::Adopt,
        Self::Swap,
        Self::Delete,
        Self::Watch,
        Self::Tally,
        Self::Page,
        Self::Counts,
        Self::Lookup,
        Self::Stop,
        Self::Occurrences,
    ];

    /// The position in [`Script::ALL`].
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Amend => 0,
            Self::Adopt => 1,
            Self::Swap => 2,
            Self::Delete => 3,
            Self::Watch => 4,
            Self::Tally => 5,
            Self::Page => 6,
            Self::Counts => 7,
            Self::Lookup => 8,
            Self::Stop => 9,
            Self::Occurrences => 10,
        }
    }

    /// The source of the script.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Amend => include_str!("amend.lua"),
            Self::Adopt => include_str!("adopt.lua"),
            Self::Swap => include_str!("swap.lua"),
            Self::Delete => include_str!("delete.lua"),
            Self::Watch => include_str!("watch.lua"),
            Self::Tally => include_str!("tally.lua"),
            Self::Page => include_str!("page.lua"),
            Self::Counts => include_str!("counts.lua"),
            Self::Lookup => include_str!("lookup.lua"),
            Self::Stop => include_str!("stop.lua"),
            Self::Occurrences => include_str!("occurrences.lua"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_its_index() {
        for (index, script) in Script::ALL.into_iter().enumerate() {
            assert_eq!(script.index(), index);
        }
    }
}
