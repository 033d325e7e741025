//! Measures the overhead of supervision: each measurement is compared with the same operation without supervision
//! ("bare").
//!
//! Both are measured alternately, because the load of a machine varies. The measured process of [`open_local`],
//! [`stream_local`] and [`accept`] is a fork of this process that does nothing else, so that only the calls are
//! measured.

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

use crate::filter::InterceptSettings;
use crate::host::{Host, Intent, PathChoice};
use crate::launch::first_datagram_descriptor;
use crate::{Errno, Error};

/// Statistics of several durations of the same operation.
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

/// The same operation, bare and supervised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparison {
    pub bare: Samples,
    pub supervised: Samples,
}

impl Comparison {
    /// The overhead, by medians.
    #[must_use]
    pub fn added(&self) -> Duration {
        self.supervised.median.saturating_sub(self.bare.median)
    }

    /// The ratio of supervised to bare, by medians.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.supervised.median.as_secs_f64() / self.bare.median.as_secs_f64()
    }

    /// Like [`ratio`](Self::ratio), by minima: without the influence of other load.
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

/// A host with some remote paths, which decides by a few prefixes, like a real one.
#[derive(Debug)]
struct PrefixHost;

impl Host for PrefixHost {
    fn choose_path(&self, path: &Path, _: Intent) -> PathChoice {
        let remote = ["/etc/app", "/var/run/secrets", "/mnt/config"];
        if remote.iter().any(|prefix| path.starts_with(prefix)) {
            PathChoice::Remote(path.to_path_buf())
        } else {
            PathChoice::Local
        }
    }
}

fn intercept_all() -> InterceptSettings {
    InterceptSettings {
        files: true,
        outgoing: true,
        incoming: true,
        hostname: true,
        refuse_io_uring: true,
        first_datagram_descriptor: first_datagram_descriptor(),
        wait_killable: true,
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { what, source }
}
