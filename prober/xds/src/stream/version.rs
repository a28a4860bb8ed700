//! What stands in `version_info`.

use std::fmt;

/// The version of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// What the set says, no more.
    Complete(u64),
    /// What the set says, and clusters that it no longer has.
    Keeping(u64),
}

impl Version {
    /// The version of the set.
    pub(super) fn number(self) -> u64 {
        match self {
            Version::Complete(number) | Version::Keeping(number) => number,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Complete(version) => write!(f, "{version}"),
            Version::Keeping(version) => write!(f, "{version}-keeping"),
        }
    }
}

/// The snapshot version in a `version_info`, whatever follows it.
pub(super) fn leading_number(version_info: &str) -> Option<u64> {
    let digits = version_info.find(|c: char| !c.is_ascii_digit()).unwrap_or(version_info.len());
    version_info.get(..digits)?.parse().ok()
}
