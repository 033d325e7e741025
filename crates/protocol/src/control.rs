//! Control: who speaks, in which version.

use crate::rpc::Version;

/// What this side speaks. The major version changes when an older peer would misunderstand; everything else adds.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// What the agent can do beyond the version, by name. A peer ignores names it does not know.
pub const FEATURES: &[&str] = &["env", "files", "dns", "outgoing", "incoming"];

impl Version {
    /// Whether this side understands a peer of version `other`.
    #[must_use]
    pub fn understands(self, other: Self) -> bool {
        self.major == other.major
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_decides() {
        let check = |major, minor, expected| {
            assert_eq!(
                VERSION.understands(Version { major, minor }),
                expected,
                "{major}.{minor}"
            );
        };
        check(1, 0, true);
        check(1, 9, true);
        check(0, 0, false);
        check(2, 0, false);
    }
}
