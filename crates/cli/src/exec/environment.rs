//! Environment variables: those of this process, and those that a program can be started with.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use crate::environment::AGENT_TOKEN;

/// Linux starts no program with a longer variable: 32 pages, including the name, the `=` and the zero byte at its end.
const MAX_LENGTH: usize = 32 * 4096;

/// The variables of this process, as bytes. The agent's secret is not passed to the program.
pub(super) fn own() -> Vec<(Vec<u8>, Vec<u8>)> {
    env::vars_os()
        .filter(|(name, _)| name != AGENT_TOKEN)
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Leaves out variables with which no program can be started, and warns of them. A target with larger pages may have some.
pub(super) fn without_oversized(
    variables: Vec<(OsString, OsString)>,
    warn: impl Fn(&str),
) -> Vec<(OsString, OsString)> {
    let fits = |(name, value): &(OsString, OsString)| {
        let length = name.len() + value.len() + 2;
        if length > MAX_LENGTH {
            warn(&format!(
                "the variable {} is left out: with {} bytes it is longer than Linux allows ({MAX_LENGTH}). Exclude it with \
                 --env-exclude, or pass the value to the program in a file",
                name.display(),
                value.len()
            ));
        }
        length <= MAX_LENGTH
    };
    variables.into_iter().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn oversized_variables_are_left_out_with_a_warning() {
        let variable =
            |name: &str, length| (OsString::from(name), OsString::from("x".repeat(length)));
        let max = MAX_LENGTH - "FITS".len() - 2;
        let warnings = RefCell::new(Vec::new());
        let kept = without_oversized(
            vec![
                variable("FITS", max),
                variable("LONG", max + 1),
                variable("HUGE", 1 << 20),
            ],
            |text| warnings.borrow_mut().push(text.to_owned()),
        );
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].0, "FITS");
        let warnings = warnings.into_inner();
        assert!(
            warnings[0].contains("LONG")
                && warnings[1].contains("HUGE")
                && warnings[1].contains("1048576"),
            "{warnings:?}"
        );
        assert!(
            warnings.iter().all(|text| !text.contains("xx")),
            "no value is shown"
        );
    }
}
