//! Control: protocol version and features.

use crate::rpc::Version;

/// The protocol version of this side. The major version changes with incompatible changes, the minor one with additions.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// The features of the agent, by name. A peer ignores unknown names.
pub const FEATURES: &[&str] = &["env", "files", "dns", "outgoing", "incoming"];

impl Version {
    /// Whether this side is compatible with a peer of version `other`.
    #[must_use]
    pub fn is_compatible_with(self, other: Self) -> bool {
        self.major == other.major
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_with_the_same_major_version_are_compatible() {
        let check = |major, minor, expected| {
            assert_eq!(
                VERSION.is_compatible_with(Version { major, minor }),
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
