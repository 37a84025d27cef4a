//! A switch that lets things go wrong: `SHOP_TROUBLE`. Without it nothing here does anything.
//!
//! | value | what happens |
//! |---|---|
//! | `refuse` | the shop says 503 before it does anything, and says so: no effect |
//! | `lost-reply` | the shop does it, and its answer is a 503: in doubt |
//! | `stall-open` | the shop does not open |
//! | `stall` | the shop does it, and then says nothing any more: kill it |
//! | `slow` | every change takes 50 ms |
//! | `third` | the third order of a customer is refused |

use std::time::Duration;

use onceward_clap::Fault;

/// What is to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    Refuse,
    LostReply,
    StallOpen,
    Stall,
    Slow,
    Third,
}

impl Trouble {
    /// As the environment says.
    pub(crate) fn from_environment() -> Result<Self, Fault> {
        match std::env::var("SHOP_TROUBLE").as_deref() {
            Err(_) => Ok(Self::None),
            Ok("refuse") => Ok(Self::Refuse),
            Ok("lost-reply") => Ok(Self::LostReply),
            Ok("stall-open") => Ok(Self::StallOpen),
            Ok("stall") => Ok(Self::Stall),
            Ok("slow") => Ok(Self::Slow),
            Ok("third") => Ok(Self::Third),
            Ok(other) => Err(Fault::invalid(format!(
                "SHOP_TROUBLE={other:?} is not known; use refuse, lost-reply, stall-open, stall, slow or third"
            ))),
        }
    }

    /// While the shop opens.
    pub(crate) fn on_open(self) {
        if self == Self::StallOpen {
            stall();
        }
    }

    /// Before anything is changed.
    pub(crate) fn before(self) -> Result<(), Fault> {
        match self {
            Self::Refuse => {
                Err(Fault::unavailable("503: the shop is closed; nothing was done").retry_after_ms(100))
            }
            Self::Slow => {
                std::thread::sleep(Duration::from_millis(50));
                Ok(())
            }
            Self::None | Self::LostReply | Self::StallOpen | Self::Stall | Self::Third => Ok(()),
        }
    }

    /// After it was changed.
    pub(crate) fn after(self) -> Result<(), Fault> {
        match self {
            Self::LostReply => Err(Fault::in_doubt("503: the shop gave no answer")),
            Self::Stall => stall(),
            Self::None | Self::Refuse | Self::StallOpen | Self::Slow | Self::Third => Ok(()),
        }
    }
}

fn stall() -> ! {
    loop {
        std::thread::park();
    }
}
