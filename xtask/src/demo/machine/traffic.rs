//! Requests to the service that a program on this machine serves.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use super::{Programs, Service};
use crate::demo::session::Session;
use crate::process;

const HEADER: &str = "x-developer: you";
const ADDRESS: &str = "http://10.77.0.1:8000/order";
const DEPLOYED: &str = "order taken by the deployed version";
const NEW: &str = "order taken by the new version";

pub(super) fn show(programs: &Programs, service: &Service) -> Result<()> {
    let filter = format!("^{HEADER}$");
    println!(
        "
Now the other direction. The service takes orders, and other users need it. You have a new version of it,
`checkout`, which should serve only your own requests. These have a header:

$ standin exec -t process/{} --steal --header-filter '{filter}' -- checkout",
        service.pid
    );
    let mut session = Command::new(&programs.standin);
    session
        .args(["exec", "-t", &format!("process/{}", service.pid)])
        .args(["--steal", "--header-filter", &filter, "--"])
        .arg(&programs.checkout)
        .stdin(Stdio::null());
    let session = Session::start(session)?;
    let others = call(programs, service, None)?;
    let you = call(programs, service, Some(HEADER))?;
    session.end()?;
    println!("\nThe session has ended, and all is as before:");
    let afterwards = call(programs, service, Some(HEADER))?;
    verify(&others, &you, &afterwards)
}

/// Fails if the demo did not show what it should.
fn verify(others: &str, you: &str, afterwards: &str) -> Result<()> {
    for (response, expected) in [(others, DEPLOYED), (you, NEW), (afterwards, DEPLOYED)] {
        if !response.contains(expected) {
            bail!(
                "the response {response:?} should be {expected:?}. `standin diagnose` reports what is missing here"
            );
        }
    }
    Ok(())
}

/// One request, from the service's own network.
fn call(programs: &Programs, service: &Service, header: Option<&str>) -> Result<String> {
    match header {
        Some(header) => println!("\n$ call {ADDRESS} '{header}'"),
        None => println!("\n$ call {ADDRESS}"),
    }
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={}", service.pid))
        .arg("--net");
    if !geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    let response = process::output(command.arg(&programs.call).arg(ADDRESS).args(header))?;
    print!("{response}");
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_must_come_from_the_expected_version() {
        assert!(verify(DEPLOYED, NEW, DEPLOYED).is_ok());
        assert!(verify(DEPLOYED, DEPLOYED, DEPLOYED).is_err());
        assert!(verify(NEW, NEW, DEPLOYED).is_err());
        assert!(verify(DEPLOYED, NEW, NEW).is_err());
    }
}
