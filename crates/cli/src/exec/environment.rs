//! Variables: ours, and those that a program can be started with.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use crate::environment::AGENT_TOKEN;

/// Linux starts no program with a longer variable: 32 pages, with the name, the `=` and a zero at its end.
const LONGEST: usize = 32 * 4096;

/// Our own variables, as bytes. The agent's secret is not for the program.
pub(super) fn own() -> Vec<(Vec<u8>, Vec<u8>)> {
    env::vars_os()
        .filter(|(name, _)| name != AGENT_TOKEN)
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Leaves out variables with which no program can be started. A machine with larger pages may have such.
pub(super) fn that_fit(
    variables: Vec<(OsString, OsString)>,
    say: impl Fn(&str),
) -> Vec<(OsString, OsString)> {
    let fits = |(name, value): &(OsString, OsString)| {
        let length = name.len() + value.len() + 2;
        if length > LONGEST {
            say(&format!(
                "the variable {} is left out: with {} bytes it is longer than Linux allows ({LONGEST}). Exclude it with \
                 --env-exclude, or give the program a file",
                name.display(),
                value.len()
            ));
        }
        length <= LONGEST
    };
    variables.into_iter().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_variable_that_no_program_can_have_is_left_out_and_named() {
        let variable =
            |name: &str, length| (OsString::from(name), OsString::from("x".repeat(length)));
        let longest = LONGEST - "FITS".len() - 2;
        let said = RefCell::new(Vec::new());
        let kept = that_fit(
            vec![
                variable("FITS", longest),
                variable("LONG", longest + 1),
                variable("HUGE", 1 << 20),
            ],
            |text| said.borrow_mut().push(text.to_owned()),
        );
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].0, "FITS");
        let said = said.into_inner();
        assert!(
            said[0].contains("LONG") && said[1].contains("HUGE") && said[1].contains("1048576"),
            "{said:?}"
        );
        assert!(
            said.iter().all(|text| !text.contains("xx")),
            "no value is shown"
        );
    }
}
