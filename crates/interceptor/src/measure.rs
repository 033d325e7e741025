//! What supervision costs on this machine: each measure beside the same thing bare, in the same run.
//!
//! The two are taken in turns, because a machine is never as idle for one as it is for the other. The measured process of
//! [`open_local`], [`stream_local`] and [`accept`] is a copy of ours that does nothing else, so that nothing but the calls is measured.

mod accept;
mod open;
mod start;
mod stream;

use std::path::Path;
use std::time::Duration;

pub use self::accept::{Accept, accept};
pub use self::open::{OpenLocal, open_local, open_local_with};
pub use self::start::start;
pub use self::stream::{StreamLocal, stream_local, stream_local_with};

use crate::filter::Catch;
use crate::host::{Host, Intent, PathChoice};
use crate::launch::first_datagram_descriptor;
use crate::{Errno, Error};

/// Several durations of the same thing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Samples {
    pub minimum: Duration,
    pub median: Duration,
}

impl Samples {
    fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self {
            minimum: durations.first().copied().unwrap_or_default(),
            median: durations
                .get(durations.len() / 2)
                .copied()
                .unwrap_or_default(),
        }
    }
}

/// The same thing, bare and supervised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparison {
    pub bare: Samples,
    pub supervised: Samples,
}

impl Comparison {
    /// What supervision adds, by medians.
    #[must_use]
    pub fn added(&self) -> Duration {
        self.supervised.median.saturating_sub(self.bare.median)
    }

    /// How many times as long it takes, by medians.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.supervised.median.as_secs_f64() / self.bare.median.as_secs_f64()
    }

    /// As [`ratio`](Self::ratio), by minima: what is left when nothing else happens on the machine.
    #[must_use]
    pub fn ratio_of_minima(&self) -> f64 {
        self.supervised.minimum.as_secs_f64() / self.bare.minimum.as_secs_f64()
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bare, supervised) = (self.bare, self.supervised);
        write!(
            formatter,
            "bare {:?} (minimum {:?}), supervised {:?} (minimum {:?}), added {:?}, ratio {:.2} (of minima {:.2})",
            bare.median,
            bare.minimum,
            supervised.median,
            supervised.minimum,
            self.added(),
            self.ratio(),
            self.ratio_of_minima()
        )
    }
}

/// A host with something remote, which decides by a few prefixes, as a real one would.
#[derive(Debug)]
struct Prefixes;

impl Host for Prefixes {
    fn choose_path(&self, path: &Path, _: Intent) -> PathChoice {
        let remote = ["/etc/app", "/var/run/secrets", "/mnt/config"];
        if remote.iter().any(|prefix| path.starts_with(prefix)) {
            PathChoice::Remote(path.to_path_buf())
        } else {
            PathChoice::Local
        }
    }
}

fn catch_everything() -> Catch {
    Catch {
        files: true,
        outgoing: true,
        incoming: true,
        hostname: true,
        refuse_io_uring: true,
        first_datagram_descriptor: first_datagram_descriptor(),
        let_signals_wait: true,
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { what, source }
}
