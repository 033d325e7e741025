//! Variables of all kinds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::world::{Ended, Standin, Target};

#[test]
fn any_bytes_and_thousands_of_variables_arrive() {
    let mut variables: Vec<(OsString, OsString)> = (0..3000)
        .map(|number| {
            (
                format!("MANY_{number}").into(),
                format!("value {number}").into(),
            )
        })
        .collect();
    let strange = OsStr::from_bytes(b"STRANGE_\xff\xfe");
    variables.push((
        strange.to_owned(),
        OsStr::from_bytes(b"\x80\n=\xc3(").to_owned(),
    ));
    variables.push(("LONG".into(), "x".repeat(120 * 1024).into()));
    variables.push(("EMPTY".into(), "".into()));
    let borrowed: Vec<(&OsStr, &OsStr)> = variables
        .iter()
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
        .collect();
    let target = Target::with(&borrowed);
    let standin = Standin::new();
    let output = standin
        .command(["exec", "-t", &target.name(), "--", "env", "-0"])
        .output()
        .unwrap();
    let found: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    for (name, value) in variables {
        let expected = [name.as_bytes(), b"=", value.as_bytes()].concat();
        assert!(found.contains(&expected.as_slice()), "{name:?} is missing");
    }
}

#[test]
fn a_variable_of_a_megabyte_is_left_out_loudly() {
    let target = Target::new();
    let standin = Standin::new();
    standin.write(
        "huge.env",
        format!("HUGE={}\nFINE=here\n", "secret".repeat(1 << 18)),
    );
    let script = "echo $FINE; echo ${#HUGE}";
    let mut command = standin.session(&target.name(), &["--env-file", "huge.env"], script);
    let ended = Ended::from(command.output().unwrap());
    ended
        .expect(0)
        .says(&["the variable HUGE is left out: with 1572864 bytes"]);
    assert_eq!(ended.stdout, "here\n0\n");
    assert!(!ended.stderr.contains("secret"));
}

#[test]
fn an_environment_that_is_too_large_in_all_says_so() {
    let target = Target::new();
    let standin = Standin::new();
    let lines: String = (0..100)
        .map(|number| format!("PART_{number}={}\n", "x".repeat(100_000)))
        .collect();
    standin.write("large.env", lines);
    let mut command = standin.session(&target.name(), &["--env-file", "large.env"], "true");
    let ended = Ended::from(command.output().unwrap());
    ended.expect(126).says(&["Argument list too long"]);
}
