//! The scripts that run on the server, each as one step that nobody sees half of.

/// A script on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Finds the ledger, or makes it.
    Open,
    /// Compare-and-swap.
    Swap,
    /// Compare-and-delete.
    Delete,
    /// Asks to be told of a record's next change.
    Watch,
    /// Adds to a tally.
    Tally,
    /// A page of a shard's listing.
    Page,
    /// How many records a shard has in each state.
    Counts,
    /// The ids of a shard that have a key, or that begin in some way.
    Lookup,
}

impl Script {
    /// All of them, in the order in which a connection loads them.
    pub(super) const ALL: [Self; 8] = [
        Self::Open,
        Self::Swap,
        Self::Delete,
        Self::Watch,
        Self::Tally,
        Self::Page,
        Self::Counts,
        Self::Lookup,
    ];

    /// Its place among all.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Open => 0,
            Self::Swap => 1,
            Self::Delete => 2,
            Self::Watch => 3,
            Self::Tally => 4,
            Self::Page => 5,
            Self::Counts => 6,
            Self::Lookup => 7,
        }
    }

    /// Its text.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Open => include_str!("open.lua"),
            Self::Swap => include_str!("swap.lua"),
            Self::Delete => include_str!("delete.lua"),
            Self::Watch => include_str!("watch.lua"),
            Self::Tally => include_str!("tally.lua"),
            Self::Page => include_str!("page.lua"),
            Self::Counts => include_str!("counts.lua"),
            Self::Lookup => include_str!("lookup.lua"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_stands_at_its_place() {
        for (index, script) in Script::ALL.into_iter().enumerate() {
            assert_eq!(script.index(), index);
        }
    }
}
